"""Which build is taken, and what is said of the others."""

from collections.abc import Callable
from pathlib import Path

from engines.contract import BuildFacts, DeviceListing, EngineKind
from supervisor.builds.inspect import FoundBuild
from supervisor.builds.selection import choose
from supervisor.builds.standing import GOOD, Advice


def _build(
    name: str, devices: tuple[str, ...] | None = (), problem: str | None = None, *, missing: bool = False
) -> FoundBuild:
    listing = None if devices is None else tuple(DeviceListing(d, d, "gpu", None, None) for d in devices)
    facts = BuildFacts(None, None, listing)
    return FoundBuild(name, EngineKind.LLAMA_CPP, Path("/x"), {}, "config", "f", facts, problem, missing)


_BROKEN = _build("broken", problem="SIGILL")
_CPU = _build("cpu")
_CUDA = _build("cuda", ("CUDA0", "CUDA1"))
_MUTE = _build("mute", None)


def test_the_first_usable_build_is_taken_and_those_before_it_say_why_not() -> None:
    """Order is preference."""
    selection = choose([_BROKEN, _CPU, _CUDA])
    assert selection.build is _CPU
    assert selection.reasons == (("broken", "SIGILL"),)


def test_without_a_usable_build_every_one_has_its_reason() -> None:
    """Nothing is chosen silently, and nothing is refused silently."""
    assert choose([_BROKEN]).build is None
    assert choose([_BROKEN]).reasons == (("broken", "SIGILL"),)
    assert choose([]).build is None


def test_a_pinned_build_is_taken_with_its_problem_unless_it_is_missing() -> None:
    """A pin is the owner's word; a file that isn't there can't be started by any word."""
    assert choose([_CPU, _BROKEN], "broken").build is _BROKEN
    gone = _build("gone", problem="no such file", missing=True)
    assert choose([_CPU, gone], "gone").build is None
    assert choose([_CPU, gone], "gone").reasons == (("gone", "no such file"),)


def test_an_unknown_pin_names_the_builds_that_there_are() -> None:
    """A typo is answered with the names to choose from."""
    ((name, reason),) = choose([_CPU, _CUDA], "cudo").reasons
    assert name == "cudo"
    assert "cpu, cuda" in reason


def test_wanted_devices_pass_over_builds_that_list_others() -> None:
    """The reason names what is lacking and what is there."""
    selection = choose([_CPU, _CUDA], devices=["CUDA1"])
    assert selection.build is _CUDA
    assert "CUDA1" in dict(selection.reasons)["cpu"]
    assert "CUDA0" in dict(choose([_CUDA], devices=["CUDA7"]).reasons)["cuda"]


def test_a_build_that_did_not_list_its_devices_is_the_last_resort() -> None:
    """Unknown is not "none": it is tried when no build is known to have the device, and only then."""
    assert choose([_MUTE, _CUDA], devices=["CUDA0"]).build is _CUDA
    selection = choose([_MUTE, _CPU], devices=["CUDA0"])
    assert selection.build is _MUTE
    assert [name for name, _reason in selection.reasons] == ["cpu"]
    assert choose([_MUTE, _CUDA]).build is _MUTE


def _advice(**held: Advice) -> Callable[[FoundBuild], Advice]:
    return lambda build: held.get(build.name, GOOD)


def test_a_build_that_is_set_aside_is_passed_over_with_its_reason() -> None:
    """And where all are, there is none."""
    aside = _advice(cpu=Advice(refused="set aside: SIGILL"))
    assert choose([_CPU, _CUDA], advice=aside).build is _CUDA
    assert choose([_CPU, _CUDA], advice=aside).reasons == (("cpu", "set aside: SIGILL"),)
    assert choose([_CPU], advice=aside).build is None


def test_a_last_resort_is_taken_where_nothing_else_is_left() -> None:
    """One in question goes after all others, also after one whose devices are not known."""
    question = _advice(cpu=Advice(last_resort="in question"), cuda=Advice(last_resort="on trial"))
    assert choose([_CPU, _MUTE], advice=question).build is _MUTE
    assert choose([_CPU, _CUDA], advice=question).build is _CPU
    assert choose([_CUDA, _MUTE], devices=["CUDA0"], advice=question).build is _MUTE


def test_a_pin_goes_before_what_is_held_against_a_build_and_says_so() -> None:
    """The config's pin is the only choice; an operator's is one as long as the build is there."""
    aside = _advice(cuda=Advice(refused="set aside: SIGILL"))
    for selection in (
        choose([_CPU, _CUDA], "cuda", advice=aside),
        choose([_CPU, _CUDA], preferred="cuda", advice=aside),
    ):
        assert selection.build is _CUDA
        assert "set aside: SIGILL" in str(selection.warning)
    assert choose([_CPU, _CUDA], preferred="cuda").warning is None
    assert choose([_CPU, _CUDA], preferred="gone").build is _CPU
    assert choose([_CPU, _CUDA], "cpu", preferred="cuda").build is _CPU
