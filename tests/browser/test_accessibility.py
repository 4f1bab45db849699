"""The axe rules over every view, in both colours."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS, OpenPage
from tests.support.daemon import daemon_config, running_daemon_sync
from tests.support.fake_engine import fake_build, tiny_model
from tests.wire.asking import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

expect.set_options(timeout=PATIENCE_MS)


def findings(page: Page) -> list[str]:
    """What axe calls serious or critical."""
    rows = Axe().run(page).response["violations"]
    return [
        f"{row['id']}: {[node['html'][:120] for node in row['nodes']]}"
        for row in rows
        if row["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_serious(tmp_path: Path, open_page: OpenPage, colours: Literal["light", "dark"]) -> None:
    """Status with a model that runs and one that failed, playground, and each dialog."""
    bad = tiny_model(tmp_path, "bad.gguf", die="load", exit=1, says=["error: something"])
    models = {"tiny": {"file": str(tiny_model(tmp_path))}, "bad": {"file": str(bad)}}
    with running_daemon_sync(tmp_path, daemon_config(fake_build(tmp_path), models=models)) as daemon:
        daemon.wait_for_event("build_found")
        ask(daemon, "/admin/v1/models/tiny/load", b"")
        ask(daemon, "/admin/v1/models/bad/load", b"")
        page = open_page(daemon.base_url, color_scheme=colours, bypass_csp=True)
        expect(page.locator('article[data-key="m:tiny"] .pill').first).to_have_text("ready")
        page.evaluate("for (const one of document.querySelectorAll('#status details')) one.open = true")
        assert findings(page) == []
        for label in ("Plan tiny", "Logs bad", "Token"):
            page.get_by_role("button", name=label, exact=True).click()
            expect(page.locator("dialog")).to_be_visible()
            page.wait_for_timeout(500)
            assert findings(page) == []
            page.keyboard.press("Escape")
        page.get_by_role("link", name="Playground").click()
        assert findings(page) == []
