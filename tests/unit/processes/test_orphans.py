"""Who is a leftover of a launch, and who only looks like one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.processes.launch_records import Here, LaunchRecord
from supervisor.processes.orphans import BY_KINSHIP, BY_MARK, BY_NUMBER, Orphan, find_orphans
from supervisor.processes.proc_table import ProcessRow

OWN = 900
HERE = Here("boot", "pid:[1]", "8:77")
RUN = "0123456789abcdef"
MARK = f"{RUN}.fedcba9876543210"
RECORD = LaunchRecord("a1b2c3", "m", MARK, HERE, pid=100, started=5000)
INIT = ProcessRow(pid=1, parent=0, group=1, session=1, started=1)
US = ProcessRow(pid=OWN, parent=1, group=OWN, session=OWN, started=9000)
ENGINE = ProcessRow(pid=100, parent=1, group=100, session=100, started=5000, mark=MARK)


def found(*rows: ProcessRow, record: LaunchRecord = RECORD) -> dict[int, str]:
    """Why each process is a leftover, by its number."""
    return {orphan.row.pid: orphan.why for orphan in find_orphans([record], HERE, (INIT, US, *rows), OWN)}


def test_the_engine_is_known_by_number_and_start_time() -> None:
    """Also when its environment can't be read."""
    assert found(replace(ENGINE, mark=None)) == {100: BY_NUMBER}


def test_a_stranger_with_the_same_number_is_left_alone() -> None:
    """Prevents the kill of whoever was given the number after the engine had ended; its children are spared too."""
    stranger = replace(ENGINE, started=7000, mark=None)
    child = ProcessRow(pid=101, parent=100, group=100, session=100, started=7100)
    assert found(stranger, child) == {}


def test_a_grandchild_is_found_when_the_wrapper_is_gone_and_its_number_given_away() -> None:
    """An engine behind a shell that did not ``exec`` it: the shell died, a stranger has its number, the mark tells."""
    stranger = replace(ENGINE, started=7000, mark=None)
    engine = ProcessRow(pid=140, parent=1, group=140, session=140, started=5003, mark=MARK)
    assert found(stranger, engine) == {140: BY_MARK}


def test_kin_are_found_by_descent_and_by_session() -> None:
    """Children that cleared their environment, and those of the launch's session whose parents are gone."""
    child = ProcessRow(pid=150, parent=100, group=150, session=150, started=5100)
    grandchild = ProcessRow(pid=151, parent=150, group=151, session=151, started=5101)
    adopted = ProcessRow(pid=152, parent=1, group=152, session=100, started=5102)
    own_session = ProcessRow(pid=153, parent=1, group=150, session=150, started=5103)
    rows = (grandchild, adopted, own_session, child, ENGINE)
    assert found(*rows) == {100: BY_NUMBER, **dict.fromkeys((150, 151, 152, 153), BY_KINSHIP)}


def test_the_session_counts_while_a_sure_member_is_in_it() -> None:
    """A session's number can't be given away while it has members: one with the mark makes the others ours."""
    marked = ProcessRow(pid=160, parent=1, group=160, session=100, started=5100, mark=MARK)
    bare = ProcessRow(pid=161, parent=1, group=161, session=100, started=5101)
    assert found(marked, bare) == {160: BY_MARK, 161: BY_KINSHIP}
    assert found(bare) == {}


def test_a_zombie_is_dead_and_still_holds_its_number() -> None:
    """It is not reaped, and what lives in its session is."""
    zombie = replace(ENGINE, dead=True, mark=None)
    member = ProcessRow(pid=170, parent=1, group=100, session=100, started=5100)
    assert found(zombie) == {}
    assert found(zombie, member) == {170: BY_KINSHIP}


@pytest.mark.parametrize(
    "here",
    [replace(HERE, boot="another"), replace(HERE, namespace="pid:[2]"), replace(HERE, folder="8:78")],
    ids=["boot", "namespace", "folder"],
)
def test_a_record_from_elsewhere_says_nothing(here: Here) -> None:
    """Another boot or namespace: numbers mean others. Another folder: a copy of one in use claims nothing."""
    assert found(ENGINE, record=replace(RECORD, here=here)) == {}


def test_a_run_is_known_by_the_beginning_of_its_marks() -> None:
    """Its record covers short commands, and launches that could not be written down; not another run's."""
    run = LaunchRecord("run-x", "", RUN, HERE)
    command = ProcessRow(pid=180, parent=1, group=180, session=180, started=5100, mark=RUN)
    other = ProcessRow(pid=181, parent=1, group=181, session=181, started=5100, mark=RUN + "0.1")
    assert found(command, other, ENGINE, record=run) == {180: BY_MARK, 100: BY_MARK}


def test_each_process_is_told_of_once_and_by_its_own_launch() -> None:
    """The run's record matches too, but knows no model."""
    run = LaunchRecord("run-x", "", RUN, HERE)
    assert find_orphans([run, RECORD], HERE, (INIT, US, ENGINE), OWN) == (Orphan(RECORD, ENGINE, BY_NUMBER),)


def test_we_and_our_parents_are_spared() -> None:
    """Prevents a daemon that was started from an engine's environment from ending itself and its shell."""
    shell = ProcessRow(pid=800, parent=1, group=800, session=800, started=8000, mark=MARK)
    us = replace(US, parent=800, mark=MARK)
    assert find_orphans([RECORD], HERE, (INIT, us, shell), OWN) == ()


_PIDS = st.integers(2, 12)
_ROWS = st.builds(
    ProcessRow,
    pid=_PIDS,
    parent=_PIDS,
    group=_PIDS,
    session=_PIDS,
    started=st.integers(1, 3),
    dead=st.booleans(),
    mark=st.sampled_from([None, MARK, RUN, "another mark, as long"]),
)


@given(rows=st.lists(_ROWS, unique_by=lambda row: row.pid), pid=_PIDS, started=st.integers(1, 3))
def test_nobody_unrelated_is_ever_found(rows: list[ProcessRow], pid: int, started: int) -> None:
    """Over any table: no dead one, not us, and no process unless a sure one is in the table; every bearer is found."""
    record = replace(RECORD, pid=pid, started=started)
    orphans = {orphan.row.pid for orphan in find_orphans([record], HERE, tuple(rows), own=2)}
    by_pid = {row.pid: row for row in rows}
    sure = [row for row in rows if row.mark == MARK or (row.pid, row.started) == (pid, started)]
    assert all(not by_pid[found].dead for found in orphans)
    assert 2 not in orphans
    if not sure:
        assert not orphans
    ancestors = _ancestors(2, by_pid)
    assert {row.pid for row in sure if not row.dead} - ancestors <= orphans


def _ancestors(pid: int, rows: dict[int, ProcessRow]) -> set[int]:
    line = {pid}
    while pid in rows and rows[pid].parent not in line:
        pid = rows[pid].parent
        line.add(pid)
    return line
