"""A real Chromium, driven by Playwright, and pages that must not complain."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

# Where Debian, others, and macOS with Homebrew put it.
_NAMES = ("chromium", "chromium-browser", "google-chrome")
# A browser beside engines on a machine that does other things too.
PATIENCE_MS = 30_000

OpenPage = Callable[..., Page]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One browser for the test: whole, so that no process of it is left."""
    executable = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if executable is None:
        pytest.skip("there is no Chromium here: apt install chromium")
    # In a container Chromium has no right to its sandbox; as root it refuses to start with one.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=arguments)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address as a user with a desktop would; what the page logs as an error fails the test at its end.

    ``allowed``: parts of messages that belong to the test, such as a status that the daemon answers on purpose.
    """
    complaints: list[str] = []
    with ExitStack() as stack:

        def opened(url: str, *, width: int = 1280, height: int = 900, allowed: str = "", **options: Any) -> Page:
            context = browser.new_context(viewport={"width": width, "height": height}, **options)
            stack.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()

            def heard(message: ConsoleMessage) -> None:
                # A line that is cut is told by the browser itself: a daemon that ends under a page is part of life.
                expected = "net::ERR_" in message.text or (allowed and allowed in message.text)
                if message.type == "error" and not expected:
                    complaints.append(message.text)

            page.on("console", heard)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
            page.goto(url)
            return page

        yield opened
    assert not complaints
