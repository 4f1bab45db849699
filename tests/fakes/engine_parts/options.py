"""llama-server's arguments, and its ``--help``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

# (names, what the value is called or "" for a switch, first line of the help, also in the older build)
FLAGS: tuple[tuple[tuple[str, ...], str, str, bool], ...] = (
    (("-h", "--help", "--usage"), "", "print usage and exit", True),
    (("--version",), "", "show version and build info", True),
    (("-t", "--threads"), "N", "number of CPU threads to use during generation (default: -1)", True),
    (("-tb", "--threads-batch"), "N", "number of threads to use during batch and prompt processing (default:", True),
    (("-c", "--ctx-size"), "N", "size of the prompt context (default: 0, 0 = loaded from model)", True),
    (("-n", "--predict", "--n-predict"), "N", "number of tokens to predict (default: -1, -1 = infinity)", True),
    (("-b", "--batch-size"), "N", "logical maximum batch size (default: 2048)", True),
    (("-ub", "--ubatch-size"), "N", "physical maximum batch size (default: 512)", True),
    (
        ("-fa", "--flash-attn"),
        "[on|off|auto]",
        "set Flash Attention use ('on', 'off', or 'auto', default: 'auto')",
        True,
    ),
    (
        ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"),
        "",
        "use single unified KV buffer shared across all",
        False,
    ),
    (("-ctk", "--cache-type-k"), "TYPE", "KV cache data type for K", True),
    (("-ctv", "--cache-type-v"), "TYPE", "KV cache data type for V", True),
    (("--mlock",), "", "force system to keep model in RAM rather than swapping or compressing", True),
    (("--mmap", "--no-mmap"), "", "whether to memory-map model. (if mmap disabled, slower load but may", True),
    (("--list-devices",), "", "print list of available devices and exit", True),
    (
        ("-dev", "--device"),
        "<dev1,dev2,..>",
        "comma-separated list of devices to use for offloading (none = don't",
        True,
    ),
    (
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "N",
        "max. number of layers to store in VRAM, either an exact number,",
        True,
    ),
    (
        ("-ts", "--tensor-split"),
        "N0,N1,N2,...",
        "fraction of the model to offload to each GPU, comma-separated list of",
        True,
    ),
    (("-fit", "--fit"), "[on|off]", "whether to adjust unset arguments to fit in device memory ('on' or", False),
    (("-m", "--model"), "FNAME", "model path to load", True),
    (("--offline",), "", "Offline mode: forces use of cache, prevents network access", False),
    (
        ("-lv", "--verbosity", "--log-verbosity"),
        "N",
        "Set the verbosity threshold. Messages with a higher verbosity will be",
        True,
    ),
    (("-cram", "--cache-ram"), "N", "set the maximum cache size in MiB (default: 8192, -1 - no limit, 0 -", False),
    (("--warmup", "--no-warmup"), "", "whether to perform warmup with an empty run (default: enabled)", True),
    (("-np", "--parallel"), "N", "number of server slots (default: -1, -1 = auto)", True),
    (("-cb", "--cont-batching", "-nocb", "--no-cont-batching"), "", "whether to enable continuous batching", True),
    (("-a", "--alias"), "STRING", "set model name aliases, comma-separated (to be used by API)", True),
    (("--host",), "HOST", "ip address to listen, or bind to an UNIX socket if the address ends", True),
    (("--port",), "PORT", "port to listen (default: 8080)", True),
    (("--webui", "--no-webui"), "", "whether to enable the Web UI (default: enabled)", False),
    (("--embedding", "--embeddings"), "", "restrict to only support embedding use case; use only with dedicated", True),
    (
        ("--pooling",),
        "{none,mean,cls,last,rank}",
        "pooling type for embeddings, use model default if unspecified",
        True,
    ),
    (("--rerank", "--reranking"), "", "enable reranking endpoint on server (default: disabled)", True),
    (("--api-key",), "KEY", "API key to use for authentication, multiple keys can be provided as a", True),
    (("-to", "--timeout"), "N", "server read/write timeout in seconds (default: 600)", True),
    (("--threads-http",), "N", "number of threads used to process HTTP requests (default: -1)", False),
    (("--metrics",), "", "enable prometheus compatible metrics endpoint (default: disabled)", True),
    (("--slots", "--no-slots"), "", "expose slots monitoring endpoint (default: enabled)", True),
    (("--slot-save-path",), "PATH", "path to save slot kv cache (default: disabled)", True),
    (("--jinja", "--no-jinja"), "", "whether to use jinja template engine for chat (default: enabled)", True),
    (
        ("--chat-template",),
        "JINJA_TEMPLATE",
        "set custom jinja chat template (default: template taken from model's",
        True,
    ),
)


class ArgumentsError(Exception):
    """An argument that ends the start, in llama-server's words."""


@dataclass(slots=True)
class Options:
    """What the arguments say; defaults are llama-server's."""

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    aliases: tuple[str, ...] = ()
    ctx_size: int = 4096
    parallel: int = 4
    batch_size: int = 2048
    kv_unified: bool = False
    embeddings: bool = False
    rerank: bool = False
    metrics: bool = False
    slots: bool = True
    slot_save_path: str | None = None
    command: str | None = None
    faults: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    @property
    def slot_context(self) -> int:
        """Tokens that one request may use."""
        return self.ctx_size if self.kv_unified else self.ctx_size // max(1, self.parallel)


_VALUES = {name: value for names, value, _, _ in FLAGS for name in names}
_OLD = frozenset(name for names, _, _, old in FLAGS if old for name in names)
_SWITCHES: dict[str, tuple[str, bool]] = {
    **dict.fromkeys(("-kvu", "--kv-unified"), ("kv_unified", True)),
    **dict.fromkeys(("-no-kvu", "--no-kv-unified"), ("kv_unified", False)),
    **dict.fromkeys(("--embedding", "--embeddings"), ("embeddings", True)),
    **dict.fromkeys(("--rerank", "--reranking"), ("rerank", True)),
    "--metrics": ("metrics", True),
    "--slots": ("slots", True),
    "--no-slots": ("slots", False),
}
_NUMBERS = {
    **dict.fromkeys(("-c", "--ctx-size"), "ctx_size"),
    **dict.fromkeys(("-np", "--parallel"), "parallel"),
    **dict.fromkeys(("-b", "--batch-size"), "batch_size"),
    "--port": "port",
}
_COMMANDS = {"-h": "help", "--help": "help", "--usage": "help", "--version": "version", "--list-devices": "devices"}


def parse(argv: list[str]) -> Options:
    """Read the arguments; unknown ones are collected, with the words after them that look like values.

    Raises:
        ArgumentsError: a known flag lacks its value, or has one that is no number.
    """
    options = Options()
    words = iter(argv)
    for word in words:
        if word.startswith("--fake-"):
            key, equals, value = word.removeprefix("--fake-").partition("=")
            options.faults[key] = value if equals else "true"
        elif word not in _VALUES:
            options.unknown.append(word)
        elif _VALUES[word]:
            _set_value(options, word, next(words, None))
        elif word in _SWITCHES:
            setattr(options, *_SWITCHES[word])
        elif word in _COMMANDS:
            options.command = options.command or _COMMANDS[word]
    return options


def refused(argv: list[str], *, old: bool) -> str | None:
    """The first flag that a strict build of this age does not know; None if it knows them all."""
    takes_value = False
    for word in argv:
        if takes_value or word.startswith("--fake-"):
            takes_value = False
            continue
        if word not in _VALUES or (old and word not in _OLD):
            return word
        takes_value = bool(_VALUES[word])
    return None


def help_text(*, old: bool) -> str:
    """``--help`` in llama-server's layout: names, value, and the text from column 40 on."""
    lines = ["----- common params -----", ""]
    for names, value, text, in_old in FLAGS:
        if old and not in_old:
            continue
        head = ", ".join(names)
        if len(names) > 1 and not names[0].startswith("--"):
            head = f"{names[0] + ',':<6} {', '.join(names[1:])}"
        head = f"{head} {value}".rstrip()
        if len(head) < 40:
            lines.append(f"{head:<40}{text}")
        else:
            lines += [head, " " * 40 + text]
    return "\n".join(lines) + "\n"


def _set_value(options: Options, flag: str, value: str | None) -> None:
    if value is None:
        raise ArgumentsError(f'error while handling argument "{flag}": expected value for argument')
    if flag in _NUMBERS:
        try:
            setattr(options, _NUMBERS[flag], int(value))
        except ValueError:
            raise ArgumentsError(f'error while handling argument "{flag}": stoi') from None
    elif flag in {"-m", "--model"}:
        options.model = value
    elif flag == "--host":
        options.host = value
    elif flag == "--slot-save-path":
        if not os.path.isdir(value):  # noqa: PTH112  quick to import
            raise ArgumentsError(f'error while handling argument "{flag}": not a directory: {value}')
        options.slot_save_path = value
    elif flag in {"-a", "--alias"}:
        options.aliases = tuple(name.strip() for name in value.split(",") if name.strip())
