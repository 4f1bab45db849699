"""What a user's ``extra_args`` may not say, and which of our own flags they take over."""

from __future__ import annotations

from engines.contract import SettingsError

_OWN = "the supervisor owns the address"
_NAMED = "the model is named by the config, its parts under `files`"
_REQUEST = "a request says it"
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("-l", "--listen-ip", "--listen-port"), _OWN),
    **dict.fromkeys(("--serve-html-path",), "it serves files of this machine"),
    **dict.fromkeys(("-m", "--model", "--diffusion-model", "--vae", "--tae", "--taesd"), _NAMED),
    **dict.fromkeys(("--clip_l", "--clip_g"), _NAMED),
    **dict.fromkeys(("--t5xxl", "--llm", "--llm_vision", "--clip_vision", "--qwen2vl", "--qwen2vl_vision"), _NAMED),
    **dict.fromkeys(("--lora-model-dir",), "launch.lora_dir says it"),
    **dict.fromkeys(("--lora-apply-mode",), "any other mode changes the weights, and later pictures with them"),
    **dict.fromkeys(("-v", "--verbose"), "it writes what clients ask for into the log"),
    **dict.fromkeys(("-p", "--prompt", "-n", "--negative-prompt", "-s", "--seed", "-b", "--batch-count"), _REQUEST),
    **dict.fromkeys(("-i", "--init-img", "--mask", "-r", "--ref-image", "--control-image", "--end-img"), _REQUEST),
    **dict.fromkeys(("-W", "--width", "-H", "--height", "--steps", "--cfg-scale", "--strength"), _REQUEST),
    **dict.fromkeys(("-h", "--help", "--version"), "it only prints"),
}  # fmt: skip
_THREADS = frozenset({"--threads", "-t"})


def check_extra_args(extra: tuple[str, ...]) -> None:
    """Refuse arguments that open doors, or say what others own.

    Raises:
        SettingsError: the first such argument, with why.
    """
    for argument in extra:
        reason = _REFUSED.get(argument.split("=", 1)[0])
        if reason is not None:
            raise SettingsError(f"extra_args may not hold {argument.split('=', 1)[0]}: {reason}")


def own_flags(extra: tuple[str, ...]) -> frozenset[str]:
    """Option names that the extra arguments set."""
    return frozenset(argument.split("=", 1)[0] for argument in extra if argument.startswith("-"))


def own_threads(extra: tuple[str, ...]) -> bool:
    """Whether they set the number of threads."""
    return bool(_THREADS & own_flags(extra))
