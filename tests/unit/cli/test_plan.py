"""What ``plan`` prints: one JSON document for scripts, and an explanation for people."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from engines.contract import BuildFacts, DeviceListing
from engines.llama_cpp.adapter import LlamaCppAdapter
from engines.llama_cpp.settings import LlamaCppSettings
from supervisor.cli.plan import render_plan
from supervisor.gateway.status_document import plan_document
from supervisor.host.pools import PoolRoom
from supervisor.planning.planner import make_plan
from tests.fakes.host_tree import host_files, lay_out, unified
from tests.support.fake_engine import fake_build, tiny_model
from tests.unit.cli.command import enginehouse
from tests.unit.planning.test_planner import GIB, REQUEST

_CARD = DeviceListing("CUDA0", "NVIDIA [RTX]", "gpu", 8 * GIB, 8 * GIB)
_KEYS = {"model", "engine", "build", "argv", "threads", "threads_batch", "n_gpu_layers", "ctx_size", "slots"}
_KEYS |= {"cache_type", "memory", "fits", "rationale"}


def _document(host: int, card: int, **launch: Any) -> dict[str, Any]:
    """Of a small model on a machine with one card; sizes in MiB."""
    rooms = (
        PoolRoom("host", host * 2**20, host * 2**20, "limit - reserve"),
        PoolRoom("gpu-0", card * 2**20, card * 2**20, "free - reserve", ("CUDA0",)),
    )
    build = replace(REQUEST.build, facts=BuildFacts(None, None, (_CARD,)))
    request = replace(REQUEST, rooms=rooms, build=build, launch=LlamaCppSettings(**launch))
    return plan_document(make_plan(request, LlamaCppAdapter()))


def _printed(document: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_plan(document, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with one small model on the fake build."""
    build = fake_build(tmp_path)
    file = tmp_path / "config.yaml"
    file.write_text(
        "version: 1\n"
        f"state_dir: {tmp_path}/state\n"
        f"models: {{m: {{file: {tiny_model(tmp_path)}}}}}\n"
        f"engines: {{llama.cpp: {{builds: [{{name: fake, executable: {build.executable}}}]}}}}\n"
    )
    return file


def test_the_document_has_the_names_that_people_script_against() -> None:
    """Every documented key, each pool with its parts, and all of it is JSON."""
    document = json.loads(json.dumps(_document(4096, 8192)))
    assert document.keys() >= _KEYS
    assert document["memory"].keys() == {"host", "gpu-0"}
    assert all({"weights", "kv", "compute", "other", "total"} <= part.keys() for part in document["memory"].values())
    assert all(row.keys() == {"choice", "value", "reason"} for row in document["rationale"])
    assert all(isinstance(word, str) for word in document["argv"])
    assert document["argv"][0] == "/opt/llama-server"
    assert document["memory"]["gpu-0"]["budget"] == 8 * GIB


@pytest.mark.parametrize("width", [40, 80, 160])
def test_people_see_the_memory_and_every_reason(width: int) -> None:
    """On any terminal: each pool with its budget and the budget's arithmetic, and each choice that was made."""
    document = _document(4096, 8192)
    text = _printed(document, width)
    words = " ".join(text.split())
    assert "it fits" in words
    assert "budget of gpu-0: free - reserve" in words
    assert max(map(len, text.splitlines())) <= width
    assert all(row["choice"] in words for row in document["rationale"] if row["choice"] != "memory")


def test_what_was_given_up_comes_before_the_choices() -> None:
    """An owner sees at once what it costs to fit, and each step that was weighed with its numbers."""
    text = " ".join(_printed(_document(4096, 300), 200).split())
    assert "Given up so that it fits" in text
    assert "What was weighed, in order" in text
    assert "as wished" in text
    assert "too much" in text


def test_what_does_not_fit_says_what_was_kept() -> None:
    """Explicit numbers are not given up; the plan says so, with what each step would have needed."""
    document = _document(200, 100, slots=2, ctx_size=8192)
    assert not document["fits"]
    text = " ".join(_printed(document, 200).split())
    assert "does NOT fit" in text
    assert "Not given up" in text
    assert "launch.ctx_size says 8192, and there is no min_ctx_size" in text


def test_a_context_may_be_cut_to_what_the_owner_said() -> None:
    """``min_ctx_size`` opens an explicit context to the ladder, down to that size and in whole multiples of 1024."""
    document = _document(250, 100, slots=1, ctx_size=8192, min_ctx_size=2048, cache_type="f16", cache_ram="0")
    assert document["fits"]
    assert "ctx_size" in document["degraded"]
    assert 2048 <= document["ctx_size"] < 8192
    assert document["ctx_size"] % 1024 == 0


def test_a_recorded_machine_can_be_asked(config: Path, tmp_path: Path) -> None:
    """``--root``: threads and memory are those of the machine in the folder; exit 0 where it fits, 1 where not."""
    wide = lay_out(tmp_path / "wide", unified() | host_files(8) | {"/sys/fs/cgroup/cpu.max": "300000 100000\n"})
    ended = enginehouse("plan", "m", "--config", str(config), "--root", str(wide), "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["fits"], document["threads"]) == (0, True, 3)
    narrow = lay_out(tmp_path / "narrow", unified() | host_files(8) | {"/sys/fs/cgroup/memory.max": "1050000000\n"})
    ended = enginehouse("plan", "m", "--config", str(config), "--root", str(narrow), "--json")
    assert (ended.code, json.loads(ended.out)["fits"]) == (1, False)
