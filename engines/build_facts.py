"""What is known of an executable: what it says of itself, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """A build's own row for one device.

    Attributes:
        id: the build's name for it, such as ``CUDA0``.
        name: the card's description.
        kind: ``gpu``, ``accel``, ``remote`` or ``unknown``.
        usable: whether the engine can offload to it (0 MiB pseudo-devices can't be).
        software: the CPU in disguise, such as llvmpipe: used only when a model names it.
    """

    id: str
    name: str
    kind: str
    total_bytes: int | None
    free_bytes: int | None
    usable: bool = True
    software: bool = False


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a short command of a build printed; ``exit_code`` is None when it ran past its limit."""

    exit_code: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What a build says of itself.

    Attributes:
        version: one line, or None if it would not say.
        flags: every option name that ``--help`` lists; None means unknown, so everything is passed.
        devices: the listing, or None when it can't be trusted.
    """

    version: str | None
    flags: frozenset[str] | None
    devices: tuple[DeviceListing, ...] | None


@dataclass(frozen=True, slots=True)
class KnownPackage:
    """A Python package that carries an executable of this engine.

    Attributes:
        module: import name of the package; it is located, never imported.
        executable: path of the executable inside the package's folder.
        library_path: folder inside the package for ``LD_LIBRARY_PATH``; None if not needed.
        interpreter: the executable is the interpreter that the package is installed for, which is the daemon's own.
    """

    name: str
    module: str
    executable: str
    library_path: str | None = None
    interpreter: bool = False
