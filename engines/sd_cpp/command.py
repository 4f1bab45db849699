"""From a plan to sd-server's arguments: the only place that writes its flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from engines.contract import BuildFacts, Choice, Command, Endpoint, PlanDraft
from engines.formats.diffusion import MODEL, picture_kind
from engines.pictures import PictureWish
from engines.sd_cpp.extra_args import check_extra_args, own_flags
from engines.sd_cpp.memory import stages
from engines.sd_cpp.placement import Placed, part_bytes, place
from engines.sd_cpp.settings import SdCppSettings

# Roles of files, and what each is; a role's flag is written from it.
PARTS: Mapping[str, str] = MappingProxyType(
    {
        MODEL: "the whole model, or most of it",
        "diffusion_model": "the network that draws",
        "vae": "the autoencoder",
        "tae": "a tiny autoencoder: quicker, with less detail",
        "clip_l": "text encoder",
        "clip_g": "text encoder",
        "t5xxl": "text encoder",
        "llm": "a language model as text encoder",
        "llm_vision": "the eyes of that language model",
        "clip_vision": "the encoder of source pictures",
    }
)
_FLAGS: Mapping[str, str] = MappingProxyType(
    {role: f"--{'diffusion-model' if role == 'diffusion_model' else role}" for role in PARTS}
)
# Flags that change where memory goes are no use to a build that does not know them, and no harm to leave out.
_SWITCHES: Mapping[str, str] = MappingProxyType(
    {"offload_to_cpu": "--offload-to-cpu", "clip_on_cpu": "--clip-on-cpu", "vae_on_cpu": "--vae-on-cpu"}
)
_MIB = 2**20

Argument = tuple[str, str | None, str]


def build_command(draft: PlanDraft, facts: BuildFacts) -> Command:
    """Arguments in a fixed order; extra ones last, so that they win.

    Raises:
        SettingsError: ``extra_args`` name something that is not theirs to say.
    """
    settings = settings_of(draft)
    extra = settings.extra_args or ()
    check_extra_args(extra)
    taken = own_flags(extra)
    argv: list[str] = []
    placed = place(draft.metadata, settings)
    choices: list[Choice] = [_weights(draft, placed), _tiles(draft, settings)]
    for flag, value, reason in _arguments(draft, settings, placed):
        if flag in taken:
            choices.append(Choice(flag, value, "left to extra_args"))
        elif facts.flags is not None and flag not in facts.flags:
            choices.append(Choice(flag, value, "not said: this build does not list it in --help"))
        else:
            argv += [flag] if value is None else [flag, value]
            if reason:
                choices.append(Choice(flag.lstrip("-"), value if value is not None else True, reason))
    return Command(argv=(*argv, *extra), choices=tuple(choices))


def endpoint_args(endpoint: Endpoint) -> tuple[str, ...]:
    """No build known here listens on a Unix socket."""
    return ("--listen-ip", "127.0.0.1", "--listen-port", str(endpoint.port))


def settings_of(draft: PlanDraft) -> SdCppSettings:
    """The draft's settings, as this engine's."""
    if not isinstance(draft.settings, SdCppSettings):
        raise TypeError(f"stable-diffusion.cpp was given {type(draft.settings).__name__}")
    return draft.settings


def _weights(draft: PlanDraft, placed: Placed) -> Choice:
    parts = part_bytes(draft.metadata)
    sizes = {"text": parts.text, "network": parts.network, "autoencoder": parts.autoencoder}
    words = ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in sizes.items() if size)
    if placed.device_bytes is None:
        why = "all counted as host memory, since sd-server lists no devices and launch.device_memory is not set"
    else:
        even_so = "" if placed.fits else ", which is more than launch.device_memory even so"
        why = (
            f"{placed.host_weights / _MIB:.1f} MiB of them in host memory, and at most "
            f"{placed.device_bytes / _MIB:.1f} MiB on the device with a picture of the usual size{even_so}"
        )
    return Choice("weights", sizes, f"{words or 'of unknown parts'}: {why}")


def _tiles(draft: PlanDraft, settings: SdCppSettings) -> Choice:
    """What pictures of some sizes take on top of the weights, whole and in tiles, and which of the two is done when."""
    usual = picture_kind(draft.metadata).size
    sizes: dict[str, dict[str, int]] = {}
    for edge in (usual // 2, usual, 2 * usual):
        wish = PictureWish("", edge, edge, 1, 1.0, 0)
        whole, tiles = (stages(draft.metadata, settings, replace(wish, tiled=tiled)).most for tiled in (False, True))
        sizes[f"{edge}x{edge}"] = {"whole": whole, "tiles": tiles}
    words = "; ".join(
        f"{size}: {taken['whole'] / _MIB:.0f} MiB, in tiles {taken['tiles'] / _MIB:.0f} MiB"
        for size, taken in sizes.items()
    )
    when = {
        None: "in tiles where the whole is not free when its turn comes, or did not fit after all",
        True: "always in tiles, by launch.vae_tiling",
        False: "never in tiles, by launch.vae_tiling",
    }[settings.vae_tiling]
    return Choice("pictures", sizes, f"working memory of one on top of the weights: {words}; decoded {when}")


def _arguments(draft: PlanDraft, settings: SdCppSettings, placed: Placed) -> Iterator[Argument]:
    for role, file in zip(draft.metadata.roles or (MODEL,), draft.files, strict=False):
        yield _FLAGS[role], str(file), ""
    if settings.lora_dir is not None:
        yield "--lora-model-dir", str(settings.lora_dir), ""
    yield "--lora-apply-mode", "at_runtime", "any other mode changes the weights, and later pictures with them"
    yield "--seed", "-1", "else every picture without a seed of its own is the same"
    if draft.threads is not None:
        yield "--threads", str(draft.threads), ""
    if settings.flash_attention:
        yield "--diffusion-fa", None, "from launch.flash_attention"
    for name, flag in _SWITCHES.items():
        if name in placed.on:
            yield flag, None, placed.on[name]
