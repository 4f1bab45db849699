from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import supervisor.gateway.status_page
from supervisor.gateway.status_page.page import POLICY, read_files
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, stream

FOLDER = Path(supervisor.gateway.status_page.__file__).parent
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_a_browser_gets_the_page_and_a_program_the_hint() -> None:
    """The same address serves both, by what they accept."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        async with gateway.client.get("/", headers=BROWSER) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert "<title>Enginehouse</title>" in await answer.text()
        async with gateway.client.get("/", headers={"Accept": "*/*"}) as answer:
            assert (await answer.json())["openai_base_url"] == "/v1"


async def test_every_file_that_the_page_names_is_there() -> None:
    """A module that is imported and not shipped would leave the page empty."""
    named = set()
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8") if path.suffix in {".js", ".html"} else ""
        named |= {name.removeprefix("./") for name in re.findall(r'from "(\./[\w.]+)"', text)}
        named |= set(re.findall(r'"status_page/([\w.]+)"', text))
    assert {"app.js", "style.css", "icon.svg", "panels.js"} <= named
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        for name in sorted(named):
            async with gateway.client.get(f"/status_page/{name}") as answer:
                assert answer.status == 200, name
                assert answer.headers["Content-Security-Policy"] == POLICY
                assert await answer.read() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", ["page.py", "__init__.py", "nothing.js", "..%2Fpage.py", "%2e%2e%2fauth.py"])
async def test_nothing_else_is_given_out(name: str) -> None:
    """The folder also holds code, and there are folders above it."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway, gateway.client.get(f"/status_page/{name}") as got:
        assert got.status == 404


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    """Asked each time, since the daemon may be another one; answered without a body while it is the same."""
    async with running_gateway(PlayedEngine(stream(b""))) as gateway:
        async with gateway.client.get("/status_page/app.js") as answer:
            tag = answer.headers["ETag"]
            assert answer.headers["Cache-Control"] == "no-cache"
        async with gateway.client.get("/status_page/app.js", headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")


def test_the_page_is_small_on_the_wire() -> None:
    """It is opened on phones; 150 KB is the most that it may ever be, and it is far below."""
    files = read_files().values()
    assert sum(len(file.packed) for file in files) < 60_000
    assert all(gzip.decompress(file.packed) == file.plain for file in files)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_no_string_becomes_markup_and_nothing_comes_from_elsewhere(path: Path) -> None:
    """Names of models and lines of logs are anybody's text."""
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in text
    assert not re.search(r"https?://|\bimport\(|fetch\(\"/|\"/(v1|admin|status_page)", text), "addresses are relative"


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    """No inline code either: what slipped into the page as markup could do nothing."""
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    assert POLICY.startswith("default-src 'none'")
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|style=|<script(?![^>]*\ssrc=)", page)
