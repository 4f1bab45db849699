"""The pages of docs/: complete, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor.gateway.errors import TABLE
from tests.support.events import every_event

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """One section of the operator's handbook."""
    return OPERATIONS.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_event_stands_in_the_handbook() -> None:
    """What the log tells must be explained, and what is explained must exist."""
    rows = [row.split("|")[1] for row in section("Events").splitlines() if "|" in row]
    told = set(re.findall(r"`(\w+)`", "\n".join(rows)))
    assert {kind.name() for kind in every_event()} == told


def test_every_error_code_stands_in_the_handbook() -> None:
    """As above, for what clients get."""
    rows = [row.split("|")[1] for row in section("Error codes").splitlines() if "|" in row]
    assert set(TABLE) == set(re.findall(r"`(\w+)`", "\n".join(rows)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Files that are there, and headings that are in them."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name} names {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", other.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} names {target}"


def test_what_the_symptoms_quote_is_what_is_said() -> None:
    """Whoever searches for the words of a message must find them; ``…`` stands for what differs."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sources = [*ROOT.glob("supervisor/**/*.py"), *ROOT.glob("engines/**/*.py"), *ROOT.glob("supervisor/**/*.js")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # a sentence over several lines
    quoted = 0
    for row in re.findall(r"(?m)^\| (.*)$", page):
        seen = row.split(" | ")[0]
        if seen.startswith("systemd says"):
            continue
        for words in (*re.findall(r"`([^`]* [^`]*)`", seen), *re.findall(r'"([^"]+)"', seen)):
            quoted += 1
            for part in filter(None, map(str.strip, words.split("…"))):
                assert part in text, words
    assert quoted > 5


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/images/*")), ids=lambda path: path.name)
def test_pictures_are_small(picture: Path) -> None:
    """Each clone carries them for ever: a screenshot with a palette takes a third."""
    assert picture.stat().st_size < 100_000
