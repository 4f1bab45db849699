from __future__ import annotations

from supervisor.telemetry.document import TARGET, document
from supervisor.telemetry.families import FAMILIES, PREFIX

_UNITS = ("seconds", "bytes", "cpus")


def test_the_page_of_metrics_is_fresh() -> None:
    """It is made from the table that the code renders by: `python -m supervisor.telemetry.document`."""
    assert TARGET.read_text(encoding="utf-8") == document()


def test_names_follow_prometheus_conventions() -> None:
    """Base units in the name, `_total` only where the library adds it, labels in snake case, each name once."""
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        full = PREFIX + family.name
        assert full.islower()
        assert full.replace("_", "").isalnum()
        assert not family.name.endswith(("_total", "_ms", "_mb", "_count", "_sum", "_bucket"))
        if family.kind == "histogram":
            assert family.name.endswith(_UNITS)
        assert family.text.endswith(".")
        assert "le" not in family.labels
