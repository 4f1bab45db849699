"""What a user's ``extra_args`` may not say, and which of our own flags they take over."""

from __future__ import annotations

from engines.contract import SettingsError

# Flags that open doors (files, other machines, tools for the model), hand secrets to argv, move the address that the
# supervisor owns, or fetch things. Each with its short and long spellings.
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--api-prefix"), "the supervisor owns the address"),
    **dict.fromkeys(("--api-key", "--api-key-file"), "the supervisor makes a key for each launch"),
    **dict.fromkeys(("--model", "-m", "--alias", "-a"), "the model is named by the config"),
    **dict.fromkeys(("--tools", "--tools-runtime", "--agent", "-ag"), "it lets a model act on this machine"),
    **dict.fromkeys(("--mcp-servers-config", "--mcp-servers-json"), "it lets a model act on this machine"),
    **dict.fromkeys(("--ui-mcp-proxy", "--webui-mcp-proxy"), "it makes the engine a proxy to other machines"),
    **dict.fromkeys(("--media-path", "--path"), "it serves files of this machine"),
    **dict.fromkeys(("--models-dir", "--models-preset", "--models-max"), "router mode: this is our own job"),
    **dict.fromkeys(("--model-url", "-mu", "--mmproj-url", "-mmu", "--docker-repo", "-dr"), "engines fetch nothing"),
    **dict.fromkeys(("--hf-repo", "-hf", "-hfr", "--hf-file", "-hff", "--hf-token", "-hft"), "engines fetch nothing"),
    **dict.fromkeys(("--hf-repo-v", "-hfv", "-hfrv", "--hf-file-v", "-hffv"), "engines fetch nothing"),
    **dict.fromkeys(("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"), "engines fetch nothing"),
    **dict.fromkeys(("--rpc",), "it sends weights to other machines"),
    **dict.fromkeys(("--props",), "it lets any client change the engine"),
    **dict.fromkeys(("--log-file", "--log-disable", "--log-prompts-dir"), "the supervisor keeps the log"),
    **dict.fromkeys(("--sleep-idle-seconds",), "keep_alive does this"),
    **dict.fromkeys(
        ("--help", "-h", "--usage", "--version", "--list-devices", "-cl", "--cache-list"), "it only prints"
    ),
}

# Two names of one option: an extra argument under one takes over what the plan says under the other.
_NAMES = (
    frozenset({"--mmproj", "-mm"}),
    frozenset({"--model-draft", "-md", "--spec-draft-model"}),
    frozenset({"--device-draft", "-devd", "--spec-draft-device"}),
)
# The projector that makes of a picture or a sound what the model reads; local models have it from nowhere else.
_PROJECTOR = frozenset({"--mmproj", "-mm"})
_THREADS = frozenset({"--threads", "-t"})


def flag_of(argument: str) -> str:
    """The option name in ``--flag=value`` or ``--flag``; llama-server reads ``--api_key`` as ``--api-key``."""
    name = argument.split("=", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def check_extra_args(extra: tuple[str, ...]) -> None:
    """Refuse arguments that open doors.

    Raises:
        SettingsError: the first such argument, with why.
    """
    for argument in extra:
        reason = _REFUSED.get(flag_of(argument))
        if reason is not None:
            raise SettingsError(f"extra_args may not hold {flag_of(argument)}: {reason}")
        if "preset" not in argument and argument.startswith("--") and argument.endswith("-default"):
            raise SettingsError(f"extra_args may not hold {argument}: engines fetch nothing")


def own_flags(extra: tuple[str, ...]) -> frozenset[str]:
    """Option names that the extra arguments set."""
    return frozenset(flag_of(argument) for argument in extra if argument.startswith("-"))


def with_other_names(flags: frozenset[str]) -> frozenset[str]:
    """The same, with the other names of those that the plan may say itself."""
    return flags.union(*(names for names in _NAMES if flags & names))


def own_threads(extra: tuple[str, ...]) -> bool:
    """Whether they set the generation threads: ``-t``, ``--threads``, ``--threads=8``; not ``--threads-batch``."""
    return bool(_THREADS & own_flags(extra))


def own_projector(extra: tuple[str, ...]) -> bool:
    """Whether they name a projector."""
    return bool(_PROJECTOR & own_flags(extra))
