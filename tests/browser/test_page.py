"""The status page where no engine need compute: tokens, restarts, proxies, hostile names, small screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS, OpenPage
from tests.browser.proxy import below_a_path
from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.support.sockets import free_port
from tests.wire.asking import ask

pytestmark = pytest.mark.timeout(180)

expect.set_options(timeout=PATIENCE_MS)
# Of messages that the browser writes where the daemon refuses a token, on purpose.
REFUSED = "the server responded with a status of 40"
HOSTILE = "<img src=x onerror=alert(1)>"


def config_of(folder: Path, *names: str, **sections: Any) -> dict[str, Any]:
    """Models of these names on a healthy build."""
    models = {name: {"file": str(tiny_model(folder)), "keep_alive": "never"} for name in names or ("tiny",)}
    return daemon_config(fake_build(folder), models=models, **sections)


def test_a_restart_is_noticed_and_said(tmp_path: Path, open_page: OpenPage) -> None:
    """The page says that nobody answers, comes back by itself, and says that the daemon is another one."""
    config = config_of(tmp_path, listen={"host": "127.0.0.1", "port": free_port()})
    with running_daemon_sync(tmp_path, config) as daemon:
        page = open_page(daemon.base_url)
        expect(page.locator("#link")).to_have_text("Live")
        page.get_by_role("button", name="Load tiny").click()
        page.get_by_role("button", name="Logs tiny").click()
        expect(page.locator("dialog [role=status]")).to_have_text("Followed live.")
    expect(page.locator("#link")).to_contain_text("Not connected")
    expect(page.locator("dialog [role=status]")).to_contain_text("Not connected")
    with running_daemon_sync(tmp_path, config):
        expect(page.locator("#link")).to_have_text("Live")
        expect(page.locator("dialog [role=status]")).to_have_text("Followed live.")
        page.keyboard.press("Escape")
        expect(page.locator("#notices")).to_contain_text("The daemon was started anew.")
        expect(page.locator("#models")).to_contain_text("tiny")


def test_a_token_is_asked_for(tmp_path: Path, open_page: OpenPage) -> None:
    """A wrong one is said to be wrong; one with `admin` sees all; one with `use` alone gets the playground only."""
    callers = []
    for name, roles in (("boss", ["admin"]), ("guest", ["use"])):
        (tmp_path / name).write_text(f"{name}-token-0123456789abcdef\n", encoding="utf-8")
        (tmp_path / name).chmod(0o600)
        callers.append({"name": name, "token_file": str(tmp_path / name), "roles": roles})
    with running_daemon_sync(tmp_path, config_of(tmp_path, auth={"callers": callers})) as daemon:
        boss, guest = (_enter(open_page(daemon.base_url, allowed=REFUSED), name) for name in ("boss", "guest"))
        expect(boss.locator("#status")).to_be_visible()
        expect(guest.locator("#playground")).to_be_visible()
        expect(guest.locator("#link")).to_contain_text("Playground only")
        expect(guest.get_by_label("Model")).to_contain_text("tiny")
        expect(guest.locator("#status")).to_be_hidden()


def _enter(page: Page, name: str) -> Page:
    """First a wrong token, then the caller's; neither stands in the address."""
    for token, answer in (("nobody's", "none of this daemon's"), (f"{name}-token-0123456789abcdef", "")):
        page.get_by_label("Token", exact=True).fill(token)
        page.get_by_role("button", name="Use it").click()
        if answer:
            expect(page.locator("dialog")).to_contain_text(answer)
    expect(page.locator("#link")).to_have_class("link live")
    assert "token-0123" not in page.url
    return page


def test_names_and_log_lines_are_text(tmp_path: Path, open_page: OpenPage) -> None:
    """Markup in a model's name, an engine's log and a failure is shown as it is written, and does nothing."""
    config = config_of(tmp_path, "tiny")
    says = [f"error: {HOSTILE} <script>alert(2)</script>"]
    config["models"]["<b>bad</b>"] = {
        "engine": "llama.cpp",
        "file": str(tiny_model(tmp_path, "bad.gguf", says=says, die="load", exit=1)),
    }
    with running_daemon_sync(tmp_path, config) as daemon:
        daemon.wait_for_event("build_found")
        assert ask(daemon, "/admin/v1/models/%3Cb%3Ebad%3C%2Fb%3E/load", b"").status >= 400
        page = open_page(daemon.base_url)
        bad = page.locator("article.model", has_text="<b>bad</b>")
        expect(bad).to_contain_text("<b>bad</b>")
        bad.locator("details.exit summary").click()
        expect(bad.locator("pre").first).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Logs <b>bad</b>").click()
        expect(page.locator("dialog .log")).to_contain_text("<script>alert(2)</script>")
        assert page.locator("img[src=x], article b b").count() == 0


def test_the_page_works_below_a_path(tmp_path: Path, open_page: OpenPage) -> None:
    """Behind a proxy that takes a prefix away, every address that the page uses must be relative."""
    with running_daemon_sync(tmp_path, config_of(tmp_path)) as daemon, below_a_path(daemon) as url:
        daemon.wait_for_event("build_found")
        page = open_page(url)
        expect(page.locator("#link")).to_have_text("Live")
        page.get_by_role("button", name="Load tiny").click()
        expect(page.locator('article[data-key="m:tiny"] .pill').first).to_have_text("ready")
        page.goto("about:blank")


def test_actions_of_an_admin(tmp_path: Path, open_page: OpenPage) -> None:
    """Pin, read the config again, clear a quarantine: each is done by the daemon, and seen to be done."""
    bad = fake_build(tmp_path, "bad", die="load", signal="SIGILL")
    config = daemon_config(bad, fake_build(tmp_path, "good"), models={"tiny": {"file": str(tiny_model(tmp_path))}})
    with running_daemon_sync(tmp_path, config) as daemon:
        daemon.wait_for_event("build_found", build="good")
        page = open_page(daemon.base_url)
        page.get_by_role("button", name="Load tiny").click()
        build = page.locator('article[data-key="b:bad"]')
        expect(build.locator(".pill").first).to_have_text("quarantined")
        expect(page.locator(".attention")).to_contain_text("Build bad is set aside")
        page.get_by_role("button", name="Clear what is held against bad").click()
        expect(build.locator(".pill").first).to_have_text("usable")
        # By keyboard, and the focus is still there after the panel has been drawn anew.
        page.get_by_role("button", name="Pin tiny").focus()
        page.keyboard.press("Enter")
        expect(page.locator('article[data-key="m:tiny"]')).to_contain_text("pinned")
        expect(page.get_by_role("button", name="Unpin tiny")).to_be_focused()
        page.get_by_role("button", name="Reload config").click()
        expect(page.locator("#notices")).to_contain_text("nothing has changed")
        expect(page.locator("#news")).to_contain_text("The config was read again")


def test_a_phone_shows_everything_without_scrolling_sideways(tmp_path: Path, open_page: OpenPage) -> None:
    """Also with a model whose name is longer than the screen; and colours can be chosen."""
    with running_daemon_sync(tmp_path, config_of(tmp_path, "tiny", "m" * 120)) as daemon:
        daemon.wait_for_event("build_found")
        page = open_page(daemon.base_url, width=360, height=740, color_scheme="dark")
        expect(page.locator("#memory .legend")).to_contain_text("others")  # before anything was launched
        page.get_by_role("button", name="Load tiny").click()
        expect(page.locator('article[data-key="m:tiny"] .pill').first).to_have_text("ready")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        dark = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
        page.get_by_role("button", name="Colours").click()
        assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != dark
        page.get_by_role("link", name="Playground").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
