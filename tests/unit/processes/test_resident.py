"""What process groups hold themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.processes.resident import resident_bytes
from tests.fakes.host_tree import lay_out

MIB = 2**20


def _process(pid: int, group: int, session: int, anon: int | None, name: str = "llama-server") -> dict[str, str]:
    status = "" if anon is None else f"RssAnon:\t {anon} kB\nRssFile:\t 900000 kB\nRssShmem:\t 7 kB\n"
    return {
        f"/proc/{pid}/stat": f"{pid} ({name}) S 1 {group} {session} 0 -1\n",
        f"/proc/{pid}/status": f"Name:\t{name}\n{status}",
    }


def test_a_group_is_counted_with_all_its_members(tmp_path: Path) -> None:
    """A wrapper script and the engine that it runs; mapped files are left out, others' processes too."""
    root = lay_out(
        tmp_path,
        _process(10, 10, 10, 100, "sh (run) 1")
        | _process(11, 10, 10, 2000)
        | _process(12, 12, 10, 50)  # a group of its own, in the same session
        | _process(20, 20, 20, 5)
        | _process(13, 10, 10, None)  # a zombie
        | {"/proc/self/stat": "", "/proc/14/stat": "nonsense"},
    )

    assert resident_bytes([10, 99], root) == {10: (100 + 2000 + 50 + 3 * 7) * 1024}
    assert resident_bytes([], root) == {}
    assert resident_bytes([10], tmp_path / "nothing") == {}


@pytest.mark.skipif(sys.platform != "linux", reason="there is /proc on Linux only")
def test_a_real_child_s_own_pages_count_and_its_mapped_file_does_not(tmp_path: Path) -> None:
    """64 MiB of its own against 64 MiB of a mapped file that it has read."""
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(MIB) * 64)
    code = (
        "import mmap, sys; own = bytearray(b'x') * (64 << 20);"
        "f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); seen = sum(m[:: mmap.PAGESIZE]);"
        "print('there', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        held = resident_bytes([child.pid])[child.pid]
        child.communicate()

    assert 64 * MIB <= held <= 64 * MIB + 32 * MIB
