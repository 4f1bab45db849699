"""The playground with a model that makes pictures, by the real sd-server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PATIENCE_MS, OpenPage
from tests.engines.pictures import drawing_daemon, png
from tests.support.daemon import Daemon
from tests.support.toy_pictures import ToyModels
from tests.wire.asking import unloaded_after

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, sd_server: Path, toy_models: ToyModels) -> Iterator[Daemon]:
    """A daemon whose models make pictures of 64 pixels."""
    with drawing_daemon(tmp_path_factory.mktemp("draws"), sd_server, toy_models) as daemon:
        daemon.wait_for_event("build_found")
        yield daemon


def test_a_picture_is_drawn_changed_and_cancelled(live: Daemon, open_page: OpenPage, tmp_path: Path) -> None:
    """By prompt, size and seed, with its progress; from a source picture; and stopped while it is drawn."""
    with unloaded_after(live, "ovis"):
        page = open_page(f"{live.base_url}/#playground")
        page.get_by_label("Model", exact=True).select_option("ovis")
        page.get_by_label("Prompt", exact=True).fill("a cat")
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Size").fill("64x64")
        page.get_by_role("button", name="Draw").click()
        state = page.locator(".draw [role=status]")
        expect(state).to_contain_text("Done in")
        expect(page.locator(".pictures img")).to_have_count(1)
        expect(page.locator(".pictures")).to_contain_text("seed 7")
        assert page.locator(".pictures img").evaluate("image => image.naturalWidth") == 64

        source = tmp_path / "source.png"
        source.write_bytes(png(64, 64))
        page.get_by_label("Source picture").set_input_files(str(source))
        page.get_by_role("button", name="Draw").click()
        expect(page.locator(".pictures img")).to_have_count(2)

        page.get_by_label("Steps").fill("100")
        page.get_by_role("button", name="Draw").click()
        expect(state).to_contain_text(re.compile(r"step \d+ of \d\d"))
        page.get_by_role("button", name="Cancel").click()
        expect(state).to_contain_text("Cancelled")
