"""A daemon with callers, from outside: who gets in, what a reload changes, and that no token is ever written down."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model

ROOT = Path(__file__).parents[3]
TLS = ROOT / "tests" / "data" / "tls"
TOKENS = {"user": "use-c0ffee-0123456789abcdef", "boss": "adm-c0ffee-fedcba9876543210"}
ROLES = {"user": ["use"], "boss": ["admin", "use"]}
WRONG = "wrong-c0ffee-aaaabbbbccccdddd"
CHAT = "/v1/chat/completions"


def config_of(folder: Path, **sections: Any) -> dict[str, Any]:
    """One model and two callers, whose tokens are in files."""
    for name, token in TOKENS.items():
        write_token(folder, name, token)
    models = {"tiny": {"file": str(tiny_model(folder)), "aliases": ["default"]}}
    callers = [{"name": name, "token_file": f"{name}.token", "roles": ROLES[name]} for name in TOKENS]
    return daemon_config(fake_build(folder), models=models, **{"auth": {"callers": callers}, **sections})


def write_token(folder: Path, name: str, token: str) -> None:
    """The token file of a caller."""
    path = folder / f"{name}.token"
    path.write_text(f"{token}\n", encoding="utf-8")
    path.chmod(0o600)


def bearer(token: str) -> dict[str, str]:
    """The usual header."""
    return {"Authorization": f"Bearer {token}"}


def ask(
    daemon: Daemon, path: str, headers: Mapping[str, str], body: object = None, method: str | None = None
) -> tuple[int, Any]:
    """One request by hand; a body makes it a POST."""
    url = urlsplit(daemon.base_url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=30)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, payload, dict(headers))
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith(("{", "[")) else text
    finally:
        connection.close()


def chat(model: str = "tiny", **more: Any) -> dict[str, Any]:
    """The body of a chat."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


def rewrite(daemon: Daemon, **sections: Any) -> None:
    """Put other sections into the config file."""
    path = daemon.folder / "config.yaml"
    document = {**yaml.safe_load(path.read_text()), **sections}
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(document))
    fresh.replace(path)


def command(daemon: Daemon, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command against the daemon, as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *arguments, "--url", daemon.base_url],
        cwd=daemon.folder,
        env={"PATH": os.environ["PATH"], "HOME": str(daemon.folder), "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_no_token_is_ever_written_down(tmp_path: Path) -> None:
    """Right and wrong ones, in headers, paths, queries and bodies, at debug level: no log, event or file has one."""
    config = config_of(tmp_path)
    with running_daemon_sync(tmp_path, config, env={"ENGINEHOUSE_LOG_LEVEL": "debug"}) as daemon:
        secrets = [*TOKENS.values(), WRONG]
        for token, status in ((TOKENS["user"], 200), (TOKENS["boss"], 200), (WRONG, 401)):
            for headers in (bearer(token), {"x-api-key": token}):
                assert ask(daemon, CHAT, headers, chat())[0] == status
                ask(daemon, CHAT, headers, chat(stream=True, user=token))
            ask(daemon, f"/v1/models?api_key={token}", {})
            ask(daemon, "/v1/models", {"Authorization": token})
            ask(daemon, "/v1/models", {"Authorization": f"Bearer {token}\tmore", "x-api-key": "k" * 9000})
            ask(daemon, "/metrics", bearer(token))
        # What a client puts elsewhere by mistake: only the daemon's own tokens are known to be secrets.
        for token in TOKENS.values():
            assert ask(daemon, f"/v1/models/{token}", bearer(TOKENS["user"]))[0] == 404
            assert ask(daemon, CHAT, bearer(TOKENS["user"]), chat(token))[0] == 404
            assert ask(daemon, f"/{token}", {"x-request-id": token})[0] == 401
        told = command(daemon, "status", "--json", "--token-file", "boss.token")
        assert told.returncode == 0, told.stderr
        ask(daemon, "/admin/v1/models/tiny/unload", bearer(TOKENS["boss"]), {})
        texts = {
            "status": json.dumps(ask(daemon, "/admin/v1/status", bearer(TOKENS["boss"]))[1]),
            "metrics": ask(daemon, "/metrics", bearer(TOKENS["user"]))[1],
            "command": told.stdout + told.stderr,
            "events": kept_events(daemon),
        }
    texts["log"] = daemon.log_text()
    texts |= {
        str(path): path.read_text(encoding="utf-8", errors="replace")
        for path in (tmp_path / "state").rglob("*")
        if path.is_file()
    }
    assert '"status": 401' in texts["log"]
    assert "request_finished" in texts["events"]
    assert {name: secret for name, text in texts.items() for secret in secrets if secret in text} == {}


def kept_events(daemon: Daemon) -> str:
    """Everything that the event stream has from the beginning, up to the answer to this very question."""
    url = urlsplit(daemon.base_url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=30)
    connection.request("GET", "/admin/v1/events?after=0", headers=bearer(TOKENS["boss"]))
    ask(daemon, "/last-question", bearer(TOKENS["boss"]))
    text = ""
    with connection.getresponse() as answer:
        assert answer.status == 200
        while "/last-question" not in text:
            text += answer.readline().decode()
    connection.close()
    return text


def test_commands_use_a_token_file(tmp_path: Path) -> None:
    """With the right one they work, without or with too small a role they say what is missing."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        assert command(daemon, "status").returncode != 0
        refused = command(daemon, "status", "--token-file", "user.token")
        assert refused.returncode != 0
        assert "role" in refused.stderr
        env = {"ENGINEHOUSE_TOKEN_FILE": str(tmp_path / "boss.token")}
        assert command(daemon, "status", "--json", env=env).returncode == 0


@pytest.mark.parametrize(("content", "said"), [(None, "is not there"), ("", "is empty"), ("a b", "something else")])
def test_it_does_not_start_with_an_unusable_token_file(tmp_path: Path, content: str | None, said: str) -> None:
    """It would start without that caller, or with a secret that is none."""
    config = config_of(tmp_path)
    (tmp_path / "user.token").unlink()
    if content is not None:
        write_token(tmp_path, "user", content)
    with running_daemon_sync(tmp_path, config, ready=False) as daemon:
        assert daemon.process.wait(20) == 2
    assert "auth.callers[0].token_file" in daemon.log_text()
    assert said in daemon.log_text()


def test_a_reload_reads_the_tokens_again(tmp_path: Path) -> None:
    """A rotated token counts from the reload on, by request or by signal, though the config file is the same."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        old, new = TOKENS["user"], "use-rotated-0123456789abcdef"
        assert ask(daemon, "/admin/v1/reload", bearer(old), {})[0] == 403
        write_token(tmp_path, "user", new)
        assert ask(daemon, "/v1/models", bearer(new))[0] == 401
        assert ask(daemon, "/admin/v1/reload", bearer(TOKENS["boss"]), {})[0] == 200
        assert ask(daemon, "/v1/models", bearer(new))[0] == 200
        assert ask(daemon, "/v1/models", bearer(old))[0] == 401
        write_token(tmp_path, "user", old)
        seen = len([row for row in daemon.records if row.get("event") == "config_reloaded"])
        daemon.send(signal.SIGHUP)
        daemon.wait_for_event("config_reloaded", cause="SIGHUP")
        assert len([row for row in daemon.records if row.get("event") == "config_reloaded"]) == seen + 1
        assert ask(daemon, "/v1/models", bearer(old))[0] == 200


def test_a_bad_token_file_keeps_the_old_callers(tmp_path: Path) -> None:
    """Nothing of that reload is applied, and the answer says which file it was."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        write_token(tmp_path, "user", "")
        status, answer = ask(daemon, "/admin/v1/reload", bearer(TOKENS["boss"]), {})
        assert (status, answer["error"]["code"]) == (400, "config_invalid")
        assert "user.token is empty" in answer["error"]["message"]
        assert ask(daemon, "/v1/models", bearer(TOKENS["user"]))[0] == 200
        assert "user.token is empty" in daemon.wait_for_event("config_rejected")["reason"]


def test_a_reload_never_opens_a_public_address(tmp_path: Path) -> None:
    """Prevents: no callers and loopback in the new file, with the address of the start: it would let everybody in."""
    with running_daemon_sync(tmp_path, config_of(tmp_path, listen={"host": "0.0.0.0"})) as daemon:
        rewrite(daemon, auth={}, listen={"host": "127.0.0.1", "port": 0})
        status, answer = ask(daemon, "/admin/v1/reload", bearer(TOKENS["boss"]), {})
        assert (status, answer["error"]["code"]) == (400, "config_invalid")
        assert ask(daemon, "/v1/models", {})[0] == 401


def test_limits_and_rules_change_with_a_reload(tmp_path: Path) -> None:
    """Roles, models, hosts and origins, without a restart."""
    page = "https://chat.example.org"
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon:
        listing = ask(daemon, "/v1/models", bearer(TOKENS["user"]))[1]
        assert [row["id"] for row in listing["data"]] == ["tiny"]
        assert ask(daemon, "/v1/models", bearer(TOKENS["user"]) | {"Host": "ai.lan"})[0] == 403
        callers = yaml.safe_load((tmp_path / "config.yaml").read_text())["auth"]["callers"]
        callers[0]["models"] = ["another"]
        port = urlsplit(daemon.base_url).port
        listen = {"host": "127.0.0.1", "port": 0, "hosts": ["ai.lan"], "cors_origins": [page]}
        rewrite(daemon, auth={"callers": callers}, listen=listen)
        daemon.wait_for_event("config_reloaded", cause="the file changed")
        assert ask(daemon, "/v1/models", bearer(TOKENS["user"]) | {"Host": f"ai.lan:{port}"})[1]["data"] == []
        headers = bearer(TOKENS["boss"]) | {"Origin": page}
        assert ask(daemon, "/admin/v1/models/tiny/unload", headers, {})[0] == 200


def test_the_daemon_speaks_https(tmp_path: Path) -> None:
    """Its address says so, and the commands check its certificate."""
    tls = {"certificate": str(TLS / "one.pem"), "key": str(TLS / "one.key")}
    with running_daemon_sync(tmp_path, config_of(tmp_path, listen={"tls": tls})) as daemon:
        assert daemon.base_url.startswith("https://")
        context = ssl.create_default_context(cafile=str(TLS / "one.pem"))
        connection = http.client.HTTPSConnection(urlsplit(daemon.base_url).netloc, context=context, timeout=30)
        connection.request("GET", "/v1/models", headers=bearer(TOKENS["user"]))
        assert connection.getresponse().status == 200
        connection.close()
        env = {"ENGINEHOUSE_TOKEN_FILE": str(tmp_path / "boss.token")}
        assert command(daemon, "status", "--json", env=env).returncode != 0
        told = command(daemon, "status", "--json", env=env | {"SSL_CERT_FILE": str(TLS / "one.pem")})
        assert told.returncode == 0, told.stderr


def test_it_does_not_start_with_a_certificate_of_another_key(tmp_path: Path) -> None:
    """It says which file is wrong."""
    tls = {"certificate": str(TLS / "one.pem"), "key": str(TLS / "two.key")}
    with running_daemon_sync(tmp_path, config_of(tmp_path, listen={"tls": tls}), ready=False) as daemon:
        assert daemon.process.wait(20) == 2
    assert "listen.tls.key" in daemon.log_text()
