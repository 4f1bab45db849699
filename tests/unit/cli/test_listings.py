"""The commands that ask a running daemon."""

import json
import socket
import threading
from pathlib import Path

import pytest

from supervisor.cli.client import DaemonClient
from supervisor.cli.listings import list_builds, list_models
from tests.unit.cli.command import enginehouse
from tests.unit.cli.daemon import STATUS, fake_daemon


@pytest.fixture
def closed_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_status_is_the_daemons_document_in_a_pipe() -> None:
    """Scripts get exactly what the daemon said."""
    with fake_daemon() as daemon:
        ended = enginehouse("status", "--url", daemon.url)
    assert (ended.code, json.loads(ended.out), ended.err) == (0, STATUS, "")


def test_status_is_tables_on_a_terminal() -> None:
    """Instances, builds, memory and queue; a name in brackets is no markup, unknown is not 0."""
    with fake_daemon() as daemon:
        text = enginehouse("status", "--url", daemon.url, on_terminal=True).out
    for part in ("qwen[3]", "1 of 4", "CRASH, build (ready)", "suspect", "1.0 GiB", "unknown", "r1", "1m1s"):
        assert part in text


def test_models_show_their_instances_state() -> None:
    """A model that was never started has no state, and is listed all the same."""
    with fake_daemon() as daemon:
        rows = json.loads(enginehouse("models", "list", "--url", daemon.url).out)
        text = enginehouse("models", "list", "--url", daemon.url, on_terminal=True).out
    assert [(row["id"], row["state"]) for row in rows] == [("qwen[3]", "ready"), ("other", None)]
    assert "default" in text
    assert "chat" in text
    assert enginehouse("models", "list", "--json", "--url", "http://127.0.0.1:1", on_terminal=True).code == 1


def test_builds_are_listed_and_inspected_by_name_or_fingerprint() -> None:
    """One build is found by its name, or by what its fingerprint begins with if only one does."""
    with fake_daemon() as daemon:
        listed = json.loads(enginehouse("builds", "list", "--url", daemon.url).out)
        by_name = json.loads(enginehouse("builds", "inspect", "gpu", "--url", daemon.url).out)
        by_hash = json.loads(enginehouse("builds", "inspect", "abd", "--url", daemon.url).out)
        by_start = json.loads(enginehouse("builds", "inspect", "gp", "--url", daemon.url).out)
        table = enginehouse("builds", "inspect", "gpu", "--url", daemon.url, on_terminal=True).out
        unclear = enginehouse("builds", "inspect", "ab", "--url", daemon.url)
        unknown = enginehouse("builds", "inspect", "x", "--url", daemon.url)
    assert listed == STATUS["builds"]
    assert by_name == by_hash == by_start == STATUS["builds"][1]
    assert "crashed" in table
    assert (unclear.code, unknown.code) == (1, 1)
    assert "several builds match 'ab'; there are: cpu, gpu" in unclear.err
    assert "no build is called 'x'" in unknown.err


def test_events_are_one_document_a_line() -> None:
    """A stream has no single document: each line is one, with id and name; heartbeats are not shown."""
    with fake_daemon() as daemon:
        ended = enginehouse("events", "--after", "3", "--url", daemon.url)
        assert daemon.asked[0][1]["Last-Event-ID"] == "3"
        enginehouse("events", "--new", "--url", daemon.url)
        assert "Last-Event-ID" not in daemon.asked[1][1]
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {"id": 7, "event": "model_broken", "at": 12.5, "level": "warning", "model": "m", "path": None},
        {"id": None, "event": "overflow", "pending": 3},
    ]


def test_events_end_at_the_limit_and_are_lines_for_people_on_a_terminal() -> None:
    """`--limit 1` shows one and ends, whatever would come."""
    with fake_daemon() as daemon:
        ended = enginehouse("events", "--limit", "1", "--url", daemon.url, on_terminal=True)
    (line,) = ended.out.splitlines()
    assert "warning model_broken" in line
    assert line.endswith('model="m"')


def test_without_a_daemon_it_says_so(closed_url: str) -> None:
    """The answer is no, not a wrong call: exit 1, one plain sentence, nothing on stdout."""
    for command in (["status"], ["models", "list"], ["builds", "list"], ["events"]):
        ended = enginehouse(*command, "--url", closed_url)
        assert (ended.code, ended.out) == (1, "")
        assert f"no daemon listens at {closed_url}. Start one with `enginehouse serve`" in ended.err
        assert ended.err.count("\n") == 1


def test_lists_have_an_answer_without_a_daemon_where_one_is_given(
    closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The offline source is asked only when nobody listens: a refusal stays a refusal."""
    client = DaemonClient(closed_url, None)
    assert list_models(client, as_json=True, offline=lambda: [{"id": "from disk"}]) == 0
    assert list_builds(client, as_json=True, offline=list) == 0
    assert "from disk" in capsys.readouterr().out
    with (
        fake_daemon({"/v1/models": (401, "application/json", b"{}")}) as daemon,
        pytest.raises(Exception, match="token"),
    ):
        list_models(DaemonClient(daemon.url, None), as_json=True, offline=list)


def test_the_token_of_the_file_is_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file comes from the option or the environment; a refused token is said without the token."""
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    with fake_daemon({"/admin/v1/status": (403, "application/json", b"{}")}) as daemon:
        monkeypatch.setenv("ENGINEHOUSE_TOKEN_FILE", str(token))
        monkeypatch.setenv("ENGINEHOUSE_URL", daemon.url + "/")
        ended = enginehouse("status")
        assert daemon.asked[0][1]["Authorization"] == "Bearer s3cret-token"
    assert ended.code == 1
    assert "refused the token (403)" in ended.err
    assert "s3cret" not in ended.err


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe"])
def test_an_unusable_token_file_is_a_wrong_call(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty or binary file is named; nothing is asked."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    ended = enginehouse("status", "--token-file", str(path))
    assert ended.code == 2
    assert f"token file {path}" in ended.err


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://x:port", "http://[::1"])
def test_an_address_that_is_none_is_a_wrong_call(url: str) -> None:
    """The message shows how to write one."""
    ended = enginehouse("status", "--url", url)
    assert ended.code == 2
    assert "write it as http://127.0.0.1:8080" in ended.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "text/html", b"<h1>"), "does not look like Enginehouse"),
        ((200, "text/html", b"<h1>"), "does not look like Enginehouse"),
        ((200, "application/json", b"[]"), "is it Enginehouse's?"),
        ((503, "application/json", json.dumps({"error": {"message": "draining"}}).encode()), "answered 503: draining"),
    ],
)
def test_another_programs_answer_is_recognised(answer: tuple[int, str, bytes], said: str) -> None:
    """Whatever listens there, the command ends with a sentence."""
    with fake_daemon({"/admin/v1/status": answer, "/admin/v1/events": answer}) as daemon:
        ended = enginehouse("builds", "list", "--url", daemon.url)
        streamed = enginehouse("events", "--url", daemon.url)
    assert (ended.code, streamed.code) == (1, 1)
    assert said in ended.err
    assert "Traceback" not in ended.err + streamed.err


def test_a_line_that_is_no_http_is_a_sentence_too() -> None:
    """Something that listens and speaks another protocol must not show a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"SSH-2.0-nope\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        ended = enginehouse("status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert ended.code == 1
    assert "can't be asked" in ended.err
