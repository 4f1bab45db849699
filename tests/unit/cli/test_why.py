"""``why`` on a terminal."""

from __future__ import annotations

import json

from tests.unit.cli.command import enginehouse
from tests.unit.cli.daemon import fake_daemon

_TOLD = {
    "request_id": "r/1",
    "model": "qwen[3]",
    "caller": "laptop",
    "came_at": "2026-01-01T00:00:00.000+00:00",
    "state": "finished",
    "story": [
        {"after_seconds": 0.0, "what": "waits: b needs 4.0 GiB [host]"},
        {"after_seconds": 2.5, "what": "ended with 200 (ok) after 3s"},
    ],
}


def test_people_get_the_story_and_scripts_the_document() -> None:
    """A line for each step with its moment; what is in square brackets is no markup; the id is quoted in the path."""
    with fake_daemon({"/admin/v1/requests/r%2F1": (200, "application/json", json.dumps(_TOLD).encode())}) as daemon:
        text = enginehouse("why", "r/1", "--url", daemon.url, on_terminal=True).out
        document = json.loads(enginehouse("why", "r/1", "--url", daemon.url).out)
    for part in ("r/1 of laptop for qwen[3]", "finished", "+0.00 s", "4.0 GiB [host]", "+2.50 s", "ended with 200"):
        assert part in text
    assert document == _TOLD
