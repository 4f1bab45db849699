"""Log lines of ggml, the tensor library under llama.cpp and stable-diffusion.cpp: allocation, devices, checks.

The texts are those of the library's own format strings (``ggml*.cpp``, ``ggml-cuda``, ``ggml-vulkan``, ``ggml-metal``,
``ggml-sycl``, ``ggml-rpc``) and of the drivers' error names that it passes on.
"""

from __future__ import annotations

import re

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence_rules import (
    DEVICE_LOST,
    ENGINE_ASSERT,
    KERNEL_FAULT,
    NO_CODE_FOR_DEVICE,
    NO_DRIVER,
    OUT_OF_DEVICE_MEMORY,
    OUT_OF_HOST_MEMORY,
    Meaning,
    Rank,
    Rule,
    has_option,
    option,
    raw,
    said,
    says,
)
from engines.evidence_system import of_library

_WRONG_DEVICE = Meaning(FailureKind.BAD_ARGUMENT, Blame.PLAN, "The plan names a device that this build does not see")
_DEVICE_BUSY = Meaning(FailureKind.DEVICE_LOST, Blame.HOST, "The device is taken by another process, or in a bad state")
_DRIVER_TOO_OLD = Meaning(FailureKind.INCOMPATIBLE_DRIVER, Blame.HOST, "The device's driver does not fit this build")
_RPC_LOST = Meaning(FailureKind.DEVICE_LOST, Blame.HOST, "The remote (RPC) server can't be reached or died")
_RPC_MISMATCH = Meaning(FailureKind.INCOMPATIBLE_DRIVER, Blame.HOST, "The remote (RPC) server is of another version")
_WEAK_DEVICE = Meaning(
    FailureKind.INCOMPATIBLE_DRIVER, Blame.HOST, "The device or its driver lacks a feature that this build needs"
)
_NO_BACKEND = Meaning(
    FailureKind.MISSING_LIBRARY,
    Blame.BUILD,
    "The build's backend libraries are missing or can't be loaded",
    RunsHere.NO,
)
_MIXED_BACKENDS = Meaning(
    FailureKind.MISSING_LIBRARY, Blame.BUILD, "A backend library is of another version", RunsHere.UNKNOWN
)
_SHADERS_FAILED = Meaning(
    FailureKind.INCOMPATIBLE_DRIVER, Blame.BUILD, "The system could not compile the build's device code"
)


def _any_of(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(texts), re.IGNORECASE)


_GPU_ERRORS: tuple[tuple[re.Pattern[str], Meaning], ...] = (
    (
        _any_of(
            "out of memory",
            "memory allocation",
            "OutOfMemory",
            "ALLOC_FAILED",
            "allocation failed",
            "CUBLAS_STATUS_NOT_INITIALIZED",
        ),
        OUT_OF_DEVICE_MEMORY,
    ),
    (
        _any_of(
            "no kernel image",
            "invalid device function",
            "device kernel image is invalid",
            "ARCH_MISMATCH",
            "NoBinaryForGpu",
            "no binary for",
            "invalid kernel file",
            "PTX JIT compilation failed",
            "shared object initialization",
            "named symbol not found",
            "invalid PTX",
            "absent from the device architecture",
        ),
        NO_CODE_FOR_DEVICE,
    ),
    (
        _any_of(
            "driver version is insufficient",
            "unsupported display driver",
            "forward compatibility",
            "not yet initialized",
            "stub library",
            "not supported in the installed",
            "JIT compiler library",
            "initialization error",
            "driver shutting down",
            r"no \S+-capable",
            "no device",
            "unsupported toolchain",
            "API call is not supported",
            "MPS ",
            "unknown error",
            "not licensed",
            "OS call failed",
            "integrity checks",
            "version mismatch",
        ),
        _DRIVER_TOO_OLD,
    ),
    (_any_of("invalid device ordinal"), _WRONG_DEVICE),
    (_any_of("busy or unavailable", "exclusive", "devices? unavailable", "in use"), _DEVICE_BUSY),
    (
        _any_of(
            "ECC error",
            "NVLink",
            "hardware stack error",
            "launch timed out",
            "external device",
            "lost",
            "Hang",
            "reset",
            "removed",
            "contained",
        ),
        DEVICE_LOST,
    ),
)


def of_gpu_error(text: str) -> Meaning:
    """What an error name of CUDA, ROCm or MUSA means; a fault in a computation unless it is known otherwise."""
    for pattern, meaning in _GPU_ERRORS:
        if pattern.search(text):
            return meaning
    return KERNEL_FAULT


def _gpu_error(match: re.Match[str], evidence: ExitEvidence) -> Meaning:
    meaning = of_gpu_error(match["text"])
    return DEVICE_LOST if meaning is _DRIVER_TOO_OLD and evidence.reached_ready else meaning


def _gpu_init(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """The device could not be initialised: never a fault in a computation."""
    meaning = of_gpu_error(match["text"])
    return NO_DRIVER if meaning is KERNEL_FAULT else meaning


_HOST_BUFFER = re.compile(r"\b(?:\w+_Host|CPU\w*|BLAS|AMX|HBM)\b")


def _buffer(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """An allocation by the name of its buffer."""
    return OUT_OF_HOST_MEMORY if _HOST_BUFFER.fullmatch(match["buffer"]) else OUT_OF_DEVICE_MEMORY


def on_device(evidence: ExitEvidence) -> bool:
    """Whether the plan puts anything on a device, as far as its arguments or the log's buffers tell."""
    device = option(evidence.argv, "--device", "-dev")
    layers = option(evidence.argv, "-ngl", "--gpu-layers", "--n-gpu-layers")
    if device == "none" or layers == "0":
        return False
    return has_option(evidence.argv, "-ngl", "--gpu-layers", "--n-gpu-layers", "--device", "-dev") or any(
        re.search(r"\b(?:CUDA|ROCm|Vulkan|SYCL|MUSA|Metal|MTL)\d", line[:500]) for line in evidence.log[-200:]
    )


def _unnamed_buffer(_: re.Match[str], evidence: ExitEvidence) -> Meaning:
    return OUT_OF_DEVICE_MEMORY if on_device(evidence) else OUT_OF_HOST_MEMORY


def _backend_library(match: re.Match[str], _: ExitEvidence) -> Meaning | None:
    """A device library that could not be loaded; the engine goes on without that device."""
    meaning = of_library(match["why"])
    return Meaning(meaning.kind, meaning.blames, meaning.says, RunsHere.UNKNOWN)


_VULKAN_ERRORS = {
    "OutOfDeviceMemory": OUT_OF_DEVICE_MEMORY,
    "OutOfPoolMemory": OUT_OF_DEVICE_MEMORY,
    "FragmentedPool": OUT_OF_DEVICE_MEMORY,
    "Fragmentation": OUT_OF_DEVICE_MEMORY,
    "TooManyObjects": OUT_OF_DEVICE_MEMORY,
    "OutOfHostMemory": OUT_OF_HOST_MEMORY,
    "MemoryMapFailed": OUT_OF_HOST_MEMORY,
    "DeviceLost": DEVICE_LOST,
    "IncompatibleDriver": NO_DRIVER,
    "InitializationFailed": _WEAK_DEVICE,
    "ExtensionNotPresent": _WEAK_DEVICE,
    "FeatureNotPresent": _WEAK_DEVICE,
    "LayerNotPresent": _WEAK_DEVICE,
    "FormatNotSupported": _WEAK_DEVICE,
    "InvalidShaderNV": _DRIVER_TOO_OLD,
}


def _vulkan(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """A Vulkan error by its name; an unknown one is the driver's fault where shaders are compiled."""
    known = _VULKAN_ERRORS.get(match["name"])
    if known is not None:
        return known
    return _DRIVER_TOO_OLD if re.search(r"[Pp]ipeline|[Ss]hader", match.string) else KERNEL_FAULT


_METAL_ERRORS: tuple[tuple[str, Meaning], ...] = (
    ("OutOfMemory", OUT_OF_DEVICE_MEMORY),
    ("Insufficient Memory", OUT_OF_DEVICE_MEMORY),
    ("PageFault", KERNEL_FAULT),
    ("Address Fault", KERNEL_FAULT),
    ("Invalid Resource", KERNEL_FAULT),
    ("StackOverflow", KERNEL_FAULT),
)


def of_metal_error(text: str) -> Meaning:
    """What a failed command buffer of Metal means, by Apple's name for it; a lost device unless known otherwise."""
    return next((meaning for name, meaning in _METAL_ERRORS if name in text), DEVICE_LOST)


def _metal(match: re.Match[str], _: ExitEvidence) -> Meaning:
    return of_metal_error(match.string)


def _sycl(match: re.Match[str], _: ExitEvidence) -> Meaning:
    """A SYCL or Level Zero error by its name."""
    name = match["name"]
    if "OUT_OF_HOST_MEMORY" in name:
        return OUT_OF_HOST_MEMORY
    if "OUT_OF" in name or "MEM_OBJECT_ALLOCATION" in name:
        return OUT_OF_DEVICE_MEMORY
    if "DEVICE_LOST" in name:
        return DEVICE_LOST
    if "DEVICE_NOT_FOUND" in name or "UNINITIALIZED" in name or "DEVICE_NOT_AVAILABLE" in name:
        return NO_DRIVER
    if any(part in name for part in ("BUILD_FAILURE", "BINARY", "UNSUPPORTED", "COMPILER", "INVALID_KERNEL")):
        return NO_CODE_FOR_DEVICE
    return KERNEL_FAULT


MEMORY_RULES: tuple[Rule, ...] = (
    said("insufficient memory (attempted", OUT_OF_HOST_MEMORY),
    raw("insufficient memory (attempted", r"\w+: insufficient memory \(attempted", OUT_OF_HOST_MEMORY),
    raw(
        "GGML_ASSERT(ctx->mem_buffer != ", r"\S+:\d+: GGML_ASSERT\(ctx->mem_buffer != \w+\) failed", OUT_OF_HOST_MEMORY
    ),
    said("std::bad_alloc", OUT_OF_HOST_MEMORY),
    raw("std::bad_alloc", r"\w+: (?:error loading model: )?(?:\w[\w ]*: )?std::bad_alloc", OUT_OF_HOST_MEMORY),
    said("bad_alloc error while", OUT_OF_HOST_MEMORY),
    said("failed to allocate HBM buffer", OUT_OF_HOST_MEMORY),
    says("posix_memalign failed", r"posix_memalign failed", OUT_OF_HOST_MEMORY),
    said("vm_allocate failed", OUT_OF_HOST_MEMORY),
    raw(": failed to allocate buffer", r"\w+cpu_buffer_type_alloc_buffer: failed to allocate", OUT_OF_HOST_MEMORY),
    says(": failed to allocate", r"cpu_buffer_type_alloc_buffer: failed to allocate", OUT_OF_HOST_MEMORY),
    raw("buffer of size", r"\w+: failed to allocate (?P<buffer>\w+) buffer of size \d+", _buffer),
    says("buffer of size", r"failed to allocate (?P<buffer>\w+) buffer of size \d+", _buffer),
    says("unable to allocate", r"unable to allocate (?P<buffer>\w+) buffer", _buffer),
    raw("unable to allocate", r"\w+: error loading model: unable to allocate (?P<buffer>\w+) buffer", _buffer),
    says(" failed: ", r"(?:cuda|hip|musa)Malloc\w* failed: (?P<text>.*)", _gpu_error),
    raw(" failed: ", r"\w+: .*(?:cuda|hip|musa)Malloc\w* failed: (?P<text>.*)", _gpu_error),
    said("failed to allocate Metal buffer", OUT_OF_DEVICE_MEMORY),
    raw("failed to allocate buffer, size =", r"\w+: error: failed to allocate buffer, size =", OUT_OF_DEVICE_MEMORY),
    said("failed to allocate buffer, size =", OUT_OF_DEVICE_MEMORY),
    says("can't allocate", r"can't allocate \d+ Bytes of memory on host", OUT_OF_HOST_MEMORY),
    says("can't allocate", r"can't allocate \d+ Bytes of memory on device", OUT_OF_DEVICE_MEMORY),
    raw("can't allocate", r"\w+: can't allocate \d+ Bytes of memory on device", OUT_OF_DEVICE_MEMORY),
    raw(
        "Device memory allocation of size",
        r"ggml_vulkan: Device memory allocation of size \d+ failed",
        OUT_OF_DEVICE_MEMORY,
    ),
    raw("Memory allocation of size", r"ggml_vulkan: Memory allocation of size \d+ failed", OUT_OF_DEVICE_MEMORY),
    said("alloc FAILED", OUT_OF_DEVICE_MEMORY),
    said("failed to allocate compute buffers", _unnamed_buffer, rank=Rank.GENERAL),
    said("graph allocation: failed to reserve memory", _unnamed_buffer, rank=Rank.GENERAL),
    raw(
        "failed to reserve memory", r"\S+:\d+: graph allocation: failed to reserve", _unnamed_buffer, rank=Rank.GENERAL
    ),
    raw("fattn buffer alloc failed", r"\S+:\d+: fattn buffer alloc failed", OUT_OF_DEVICE_MEMORY),
)

DEVICE_RULES: tuple[Rule, ...] = (
    raw(
        "failed to initialize",
        r"\w+: failed to initialize (?:CUDA|ROCm|HIP|MUSA): (?P<text>.*)",
        _gpu_init,
        rank=Rank.SOFT,
    ),
    said("failed to initialize: SYCL", NO_DRIVER, rank=Rank.SOFT),
    raw("no device of requested type", r".*[Nn]o device of requested type", NO_DRIVER),
    raw("No device of requested type", r".*No device of requested type", NO_DRIVER),
    raw(
        "failed to load",
        r"(?:\w+: )+failed to load \S+\.(?:so|dll|dylib)\S*: (?P<why>.*)",
        _backend_library,
        rank=Rank.SOFT,
    ),
    raw(
        " error",
        r"(?:cu(?:BLAS|FFT)|(?:CUDA|ROCm|HIP|MUSA)) error(?: \d+)?(?: at [^:]+:\d+)?: (?P<text>.+)",
        _gpu_error,
    ),
    raw(" error", r"\S+:\d+: (?:CUDA|ROCm|HIP|MUSA) error", KERNEL_FAULT, rank=Rank.ABORT),
    raw("VMM Failure", r".*(?:Hip|Cuda)VMM Failure: (?P<text>.*)", _gpu_error),
    raw("rocBLAS error", r"rocBLAS error: .*(?:TensileLibrary|GPU arch|No such file)", NO_CODE_FOR_DEVICE),
    raw("rocBLAS error", r"rocBLAS error", NO_CODE_FOR_DEVICE, rank=Rank.GENERAL),
    raw(" object", r".*(?:No compatible code objects|Unable to find code object|no code object)", NO_CODE_FOR_DEVICE),
    raw("hipErrorNoBinaryForGpu", r".*hipErrorNoBinaryForGpu", NO_CODE_FOR_DEVICE),
    raw("fault by GPU", r"Memory access fault by GPU", KERNEL_FAULT),
    raw("HW Exception by GPU", r"HW Exception by GPU.*", DEVICE_LOST),
    raw("HSA_STATUS_ERROR", r".*HSA_STATUS_ERROR_OUT_OF_RESOURCES", OUT_OF_DEVICE_MEMORY),
    raw("HSA_STATUS_ERROR", r".*HSA_STATUS_ERROR", KERNEL_FAULT, rank=Rank.GENERAL),
    raw("/dev/kfd", r".*(?:Unable|Failed|could not|Permission).*/dev/(?:kfd|dri)", NO_DRIVER, rank=Rank.SOFT),
    raw("ROCk module is NOT loaded", r".*ROCk module is NOT loaded", NO_DRIVER, rank=Rank.SOFT),
    raw("vk::", r"(?:terminate called .*|libc\+\+abi: .*)'?vk::(?P<name>\w+?)Error\b", _vulkan, rank=Rank.GENERAL),
    raw(
        "vk::",
        r"(?:\s*what\(\):\s+|ggml_vulkan: (?!Failed to allocate pinned).*|libc\+\+abi: .*)"
        r"vk::[\w:]+: Error(?P<name>\w+)",
        _vulkan,
    ),
    says("vk::", r"vk::[\w:]+: Error(?P<name>\w+)", _vulkan),
    raw(
        "ggml_vulkan: ",
        r"ggml_vulkan: (?!Failed to allocate pinned).*\bError(?P<name>OutOf\w+Memory|DeviceLost)",
        _vulkan,
    ),
    raw("ggml_vulkan: error ", r"ggml_vulkan: (?:.* )?error Error(?P<name>\w+) at ", _vulkan),
    raw("ggml_vulkan: device ", r"ggml_vulkan: device (?:lost|fault) on ", DEVICE_LOST),
    raw("creation failed for", r"ggml_vulkan: .*creation failed for ", _DRIVER_TOO_OLD),
    raw("16-bit storage", r"(?:ggml_vulkan: )?.*does not support 16-bit storage", _WEAK_DEVICE),
    raw("No devices found", r"ggml_vulkan: No devices found", NO_DRIVER, rank=Rank.SOFT),
    said("no CPU backend found", _NO_BACKEND),
    said("no backends are loaded", _NO_BACKEND),
    raw("no CPU backend found", r"(?:\w+: )+no CPU backend found", _NO_BACKEND),
    says("failed to initialize", r"failed to initialize (?!CPU)\w+ backend", NO_DRIVER, rank=Rank.GENERAL),
    said("incompatible API version", _MIXED_BACKENDS, rank=Rank.SOFT),
    said("failed to find ggml_backend_init in", _MIXED_BACKENDS, rank=Rank.SOFT),
    raw("Unsupported device", r"\s*(?:what\(\):\s+|ggml_vulkan: )?Unsupported device", _WEAK_DEVICE),
    raw("Vulkan 1.2 required", r"ggml_vulkan: .*Vulkan 1\.\d required", _WEAK_DEVICE),
    raw("No suitable queue family", r"ggml_vulkan: No suitable queue family", _WEAK_DEVICE),
    raw("Shared memory size too small", r"ggml_vulkan: .*Shared memory size too small", _WEAK_DEVICE),
    raw("does not exist", r"ggml_vulkan: Device with index \d+ does not exist", _WRONG_DEVICE),
    raw("GGML_VK_VISIBLE_DEVICES", r"ggml_vulkan: Invalid device index", _WRONG_DEVICE),
    raw("Missing op", r"ggml_vulkan: .*Missing op", ENGINE_ASSERT, rank=Rank.ABORT),
    raw("command buffer", r".*command buffer \d+ failed with status \d+", DEVICE_LOST, rank=Rank.GENERAL),
    raw("Caused GPU ", r".*Caused GPU (?:Hang|Timeout|Address Fault)", _metal),
    raw("failed assertion", r"\S.*: failed assertion ", ENGINE_ASSERT, rank=Rank.ABORT),
    raw("kIOGPUCommandBuffer", r".*kIOGPUCommandBuffer\w+", _metal),
    raw("Insufficient Memory", r"error: Insufficient Memory", OUT_OF_DEVICE_MEMORY),
    raw("Metal library", r"\w+: error: failed to initialize the Metal library", _SHADERS_FAILED, rank=Rank.GENERAL),
    said("failed to create Metal library", _SHADERS_FAILED, rank=Rank.GENERAL),
    raw("error compiling source", r"\w+: error compiling source", _SHADERS_FAILED, rank=Rank.GENERAL),
    raw("failed to compile pipeline", r"\w+: failed to compile pipeline", _SHADERS_FAILED, rank=Rank.GENERAL),
    raw("kernel not found in any metal library", r"\w+: kernel not found", _SHADERS_FAILED, rank=Rank.GENERAL),
    raw("failed to create command queue", r"\w+: error: failed to create command queue", NO_DRIVER),
    raw("_RESULT_ERROR_", r".*(?P<name>(?:UR|ZE|PI)_RESULT_ERROR_\w+)", _sycl),
    raw("PI_ERROR_", r".*(?P<name>PI_ERROR_\w+)", _sycl),
    raw("CL_", r".*(?:error|failed).*(?P<name>CL_(?:OUT_OF|MEM_OBJECT|DEVICE_NOT|BUILD|INVALID)\w+)", _sycl),
    raw("aspect", r".*(?:Required aspect|required aspect) \w+ is not supported", NO_CODE_FOR_DEVICE),
    raw("SYCL error", r"(?:\S+:\d+: )?SYCL error", KERNEL_FAULT, rank=Rank.ABORT),
    raw("SYCL exception", r".*SYCL exception", KERNEL_FAULT, rank=Rank.ABORT),
    raw("Failed to connect to", r"\S+:\d+: Failed to connect to ", _RPC_LOST),
    raw("RPC", r"(?:\S+:\d+: )?(?:RPC handshake failed|RPC transport initialization failed)", _RPC_LOST),
    raw("Remote RPC server", r"\S+:\d+: Remote RPC server crashed", _RPC_LOST),
    raw("bytes_", r"\w+: (?:send|recv) failed \(bytes_", _RPC_LOST, rank=Rank.GENERAL),
    raw("RPC server version mismatch", r".*RPC server version mismatch", _RPC_MISMATCH),
    raw("HELLO", r".*HELLO (?:request size mismatch|command, update)", _RPC_MISMATCH),
)


def is_abort_frame(line: str) -> bool:
    """A frame of a back trace that tells how the process died, for when the message itself was lost."""
    return "ggml_abort" in line or "ggml_cuda_error" in line


_SOURCE = r"\S+?\.(?:cpp|cc|cxx|c|cu|cuh|hpp|h|mm|m|metal|comp|hip|inl|inc)(?::\d+|\(\d+\)): "

ASSERT_RULES: tuple[Rule, ...] = (
    raw("GGML_ASSERT", r"(?:" + _SOURCE + r"|.*: )?GGML_ASSERT(?:\(|: )", ENGINE_ASSERT, rank=Rank.ABORT),
    raw(": ", _SOURCE + r"(?!\d)", ENGINE_ASSERT, rank=Rank.ABORT),
    raw("ggml_abort", r".*\bggml_abort\b", ENGINE_ASSERT, rank=Rank.AFTERMATH),
    raw("ggml_cuda_error", r".*\bggml_cuda_error\b", KERNEL_FAULT, rank=Rank.AFTERMATH),
)

GGML_RULES: tuple[Rule, ...] = MEMORY_RULES + DEVICE_RULES + ASSERT_RULES
