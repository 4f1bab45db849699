"""The status page over a live daemon with the real engine: what an owner sees while things happen."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS, OpenPage
from tests.support.daemon import Daemon, daemon_config, running_daemon_sync
from tests.support.demo import DemoEngine
from tests.wire.asking import LOG_ALL, asking, chat_body, endless, instance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

expect.set_options(timeout=PATIENCE_MS)
# Of an engine's 330 MiB there is room for one.
MEMORY = {"memory": "600MiB", "reserve": {"memory": "0MiB"}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, demo_engine: DemoEngine, demo_model: Path) -> Iterator[Daemon]:
    """A daemon with two models, and memory for one."""
    folder = tmp_path_factory.mktemp("page")
    launch = {"ctx_size": 2048, "threads": 1, "threads_batch": 1, "slots": 2, "cache_ram": "256MiB"}
    model = {"file": str(demo_model), "keep_alive": "never", "serves": ["chat"], "launch": launch}
    config = daemon_config(
        demo_engine.as_config(),
        models={"smol": model, "other": model},
        host=MEMORY,
        supervision={"liveness": {"failures": 30}, "restart": {"initial": "30s", "max": "60s"}},
        broker={"eviction": {"min_idle": "0s"}},
    )
    with running_daemon_sync(folder, config, env=LOG_ALL) as daemon:
        daemon.wait_for_event("build_found")
        yield daemon


def press(page: Page, label: str) -> None:
    """Click the one button of this name."""
    page.get_by_role("button", name=label, exact=True).click()


def test_what_runs_waits_and_fills_the_memory(live: Daemon, open_page: OpenPage) -> None:
    """Load by a click, then work: state, plan with reasons, three columns of memory, slots, tokens a second, queue.

    Then another model takes its place, and the page says for whom and with what arithmetic. At last its engine is
    killed from outside, and the page says that too. One test, since each step begins where the one before ended.
    """
    page = open_page(live.base_url)
    expect(page.locator("#link")).to_have_text("Live")
    smol, other = page.locator('article[data-key="m:smol"]'), page.locator('article[data-key="m:other"]')

    press(page, "Load smol")
    expect(smol.locator(".pill").first).to_have_text("ready")
    expect(page.locator("#memory .legend")).to_contain_text("smol")
    expect(page.locator("#memory")).to_contain_text("600.0 MiB")
    columns = smol.locator("table.memory tbody tr")
    expect(columns.locator("td").nth(1)).to_contain_text("MiB")
    expect(columns.locator("td").nth(2)).to_contain_text("MiB")
    smol.get_by_text("Plan and its reasons").click()
    expect(smol.locator("details.plan")).to_contain_text("launch.threads says 1")
    expect(page.locator("#builds")).to_contain_text("usable")
    expect(page.locator("#cpu")).to_contain_text("CPUs")

    with asking(live, endless("smol"), id="one") as one, asking(live, endless("smol"), id="two") as two:
        one.next_text()
        two.next_text()
        expect(smol.locator(".slots")).to_contain_text("2 of 2 slots in use")
        expect(smol).to_contain_text(re.compile(r"\b[1-9][0-9.]* tokens/s"))
        with asking(live, chat_body("smol", stream=True, max_tokens=4), id="three"):
            expect(page.locator("#queue")).to_contain_text("all slots of smol-1 are taken")
            expect(page.locator("#queue")).to_contain_text("1 waiting")
        expect(page.locator("#hour path.stroke").first).to_be_visible()
    expect(page.locator("#queue")).to_contain_text("Nobody waits")
    expect(smol.locator(".slots")).to_contain_text("0 of 2 slots in use")

    press(page, "Plan other")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("It fits once idle models are stopped.")
    expect(dialog).to_contain_text("smol would be stopped")
    page.keyboard.press("Escape")

    press(page, "Load other")
    expect(other.locator(".pill").first).to_have_text("ready")
    expect(smol.locator(".pill").first).to_have_text("stopped")
    evicted = page.locator("#news li", has_text="smol is stopped to make room for other").first
    expect(evicted).to_contain_text("needs")
    evicted.locator("summary").click()
    expect(evicted.locator("dl")).to_contain_text("beneficiary")

    os.kill(instance(live, "other")["pid"], signal.SIGKILL)
    crashed = page.locator("#news li", has_text="The engine of other ended while ready (KILLED)").first
    expect(crashed).to_be_visible()
    expect(other).to_contain_text("KILLED")
    expect(other.locator(".pill").first).to_have_text("stopped")


def test_the_playground_chats_and_stops(live: Daemon, open_page: OpenPage) -> None:
    """Streamed, with tokens a second; a stopped answer frees its slot."""
    page = open_page(f"{live.base_url}/#playground")
    page.get_by_label("Model").select_option("smol")
    page.get_by_text("Settings of the chat").click()
    page.get_by_label("At most tokens").fill("24")
    page.get_by_label("Message").fill("Say hello.")
    press(page, "Send")
    figures = page.locator(".say [role=status]")
    expect(figures).to_contain_text("tokens/s, the first after")
    expect(page.locator(".talk .assistant .text").last).not_to_be_empty()

    page.get_by_label("At most tokens").fill("2000")
    page.get_by_label("Message").fill("Tell a very long story.")
    page.get_by_label("Message").press("Enter")
    expect(figures).to_contain_text("tokens/s")
    press(page, "Stop")
    expect(figures).to_contain_text("Stopped.")
    live.wait_for(lambda record: record.get("event") == "request_finished" and record.get("outcome") == "client_left")
    page.get_by_role("link", name="Status").click()
    expect(page.locator('article[data-key="m:smol"] .slots')).to_contain_text("0 of 2 slots in use")
    press(page, "Logs smol")
    expect(page.locator("dialog .log")).to_contain_text("llama")
    page.keyboard.press("Escape")
    press(page, "Unload smol")
    expect(page.locator('article[data-key="m:smol"] .pill').first).to_have_text("stopped")
