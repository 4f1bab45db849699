"""Texts that no recorded exit has: from the engines' format strings, the drivers' error names, and the loaders."""

from __future__ import annotations

import pytest

from engines.contract import ExitEvidence, RunsHere
from engines.evidence import classify

_SERVER = ("/opt/llama/llama-server", "-m", "/models/m.gguf", "-ngl", "99")
_SD = ("/opt/sd/sd-server", "--diffusion-model", "/models/d.gguf")
_MLX = ("/opt/mlx/bin/mlx_lm.server", "--model", "/models/m")

_ABORTS: dict[str, str] = {
    "CUDA error: device-side assert triggered": "CRASH/build",
    "CUDA error: an illegal instruction was encountered": "CRASH/build",
    "CUDA error: invalid program counter": "CRASH/build",
    "CUDA error: invalid argument": "CRASH/build",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED": "CRASH/build",
    "CUDA error: CUBLAS_STATUS_ARCH_MISMATCH": "INCOMPATIBLE_DRIVER/build",
    "CUDA error: device kernel image is invalid": "INCOMPATIBLE_DRIVER/build",
    "CUDA error: a PTX JIT compilation failed": "INCOMPATIBLE_DRIVER/build",
    "CUDA error: the provided PTX was compiled with an unsupported toolchain.": "INCOMPATIBLE_DRIVER/host",
    "CUDA error: CUDA driver is a stub library": "INCOMPATIBLE_DRIVER/host",
    "CUDA error: initialization error": "INCOMPATIBLE_DRIVER/host",
    "CUDA error: uncorrectable ECC error encountered": "DEVICE_LOST/host",
    "CUDA error: the launch timed out and was terminated": "DEVICE_LOST/host",
    "CUDA error: hardware stack error": "DEVICE_LOST/host",
    "CUDA error: invalid device ordinal": "BAD_ARGUMENT/plan",
    "CUDA error 700 at /x/ggml-cuda.cu:7066: an illegal memory access was encountered": "CRASH/build",
    "cuBLAS error 3 at /x/ggml-cuda.cu:1: CUBLAS_STATUS_ALLOC_FAILED": "OUT_OF_DEVICE_MEMORY/plan",
    "ROCm error: shared object initialization failed": "INCOMPATIBLE_DRIVER/build",
    "MUSA error: out of memory": "OUT_OF_DEVICE_MEMORY/plan",
    "rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU "
    "arch : gfx1036": "INCOMPATIBLE_DRIVER/build",
    'hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"': "INCOMPATIBLE_DRIVER/build",
    "HW Exception by GPU node-2 (Agent handle: 0x1) reason :GPU Hang": "DEVICE_LOST/host",
    "ggml_vulkan: Error: Vulkan 1.2 required.": "INCOMPATIBLE_DRIVER/host",
    "ggml_vulkan: Error: Shared memory size too small for matrix multiplication.": "INCOMPATIBLE_DRIVER/host",
    "ggml_vulkan: Invalid device index 4 in GGML_VK_VISIBLE_DEVICES.": "BAD_ARGUMENT/plan",
    "ggml_vulkan: shader module creation failed for mul_mat: vk::Device::createShaderModule: ErrorUnknown": (
        "INCOMPATIBLE_DRIVER/host"
    ),
    "  what():  vk::createInstance: ErrorInitializationFailed": "INCOMPATIBLE_DRIVER/host",
    "  what():  vk::Device::allocateMemory: ErrorOutOfHostMemory": "OUT_OF_HOST_MEMORY/plan",
    "  what():  vk::Queue::submit: ErrorOutOfDeviceMemory": "OUT_OF_DEVICE_MEMORY/plan",
    "  what():  vk::Device::waitForFences: ErrorDeviceLost": "DEVICE_LOST/host",
    "error: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)": "DEVICE_LOST/host",
    "error: Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)": (
        "DEVICE_LOST/host"
    ),
    "error: Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)": "CRASH/build",
    "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)": "DEVICE_LOST/host",
    "level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)": "OUT_OF_DEVICE_MEMORY/plan",
    "No device of requested type available. Please check https://software.intel.com/": "INCOMPATIBLE_DRIVER/host",
    "Required aspect fp64 is not supported on the device": "INCOMPATIBLE_DRIVER/build",
    "/x/ggml-rpc.cpp:300: Failed to connect to 10.0.0.7:50052": "DEVICE_LOST/host",
    "/x/ggml-rpc.cpp:310: RPC handshake failed for 10.0.0.7:50052": "DEVICE_LOST/host",
    "/x/ggml-backend.cpp:9: pre-allocated tensor (k) in a buffer (CUDA0) that cannot run the operation (NONE)": (
        "ENGINE_ASSERT/build"
    ),
    "llama-server: /x/vector.h:12: T& at(int): Assertion `i < n' failed.": "ENGINE_ASSERT/build",
    "malloc(): corrupted top size": "CRASH/build",
    "free(): invalid pointer": "CRASH/build",
    "*** stack smashing detected ***: terminated": "CRASH/build",
    "pure virtual method called": "CRASH/build",
    "libc++abi: terminating due to uncaught exception of type std::bad_alloc: std::bad_alloc": (
        "OUT_OF_HOST_MEMORY/plan"
    ),
    "libgomp: Thread creation failed: Resource temporarily unavailable": "OUT_OF_HOST_MEMORY/host",
}

_LOADERS: dict[str, str] = {
    "/o/llama-server: error while loading shared libraries: libllama.so: wrong ELF class: ELFCLASS32": (
        "MISSING_LIBRARY/build"
    ),
    "/o/llama-server: error while loading shared libraries: libOpenCL.so.1: cannot open shared object file: No such "
    "file or directory": "MISSING_LIBRARY/host",
    "/o/llama-server: error while loading shared libraries: libcublasLt.so.13: cannot open shared object file: No such "
    "file or directory": "MISSING_LIBRARY/build",
    "/o/llama-server: error while loading shared libraries: libhipblaslt.so.0: cannot open shared object file: No such "
    "file or directory": "MISSING_LIBRARY/host",
    "/o/llama-server: error while loading shared libraries: libsvml.so: cannot open shared object file: No such file "
    "or directory": "MISSING_LIBRARY/host",
    "/o/llama-server: error while loading shared libraries: libggml.so: cannot open shared object file: Permission "
    "denied": "MISSING_LIBRARY/host",
    "/o/llama-server: error while loading shared libraries: libggml.so: failed to map segment from shared object: "
    "Cannot allocate memory": "OUT_OF_HOST_MEMORY/plan",
    "/o/llama-server: relocation error: /o/libllama.so: symbol x, version Y not defined in file libggml.so with link "
    "time reference": "MISSING_LIBRARY/build",
    "/o/llama-server: symbol lookup error: /o/libggml.so: undefined symbol: cublasGemmEx": "MISSING_LIBRARY/build",
    "Error loading shared library libstdc++.so.6: No such file or directory (needed by /o/llama-server)": (
        "MISSING_LIBRARY/build"
    ),
    "Error relocating /o/libggml.so: __isoc23_strtol: symbol not found": "MISSING_LIBRARY/build",
    "Fatal glibc error: CPU does not support x86-64-v3": "INCOMPATIBLE_CPU/build",
    "dyld[7]: Symbol not found: _ggml_new": "MISSING_LIBRARY/build",
    "bash: /o/llama-server: cannot execute: required file not found": "MISSING_LIBRARY/build",
    "zsh: exec format error: /o/llama-server": "INCOMPATIBLE_CPU/build",
}

_LOAD_FAILURES: dict[str, str] = {
    "gguf_init_from_reader: this GGUF file is version 4 but this software only supports up to version 3": (
        "MODEL_UNSUPPORTED/model"
    ),
    "gguf_init_from_reader: key 'general.name' has invalid GGUF type 77": "MODEL_UNREADABLE/model",
    "gguf_init_from_reader: duplicate key 'a' for tensors 1 and 2": "MODEL_UNREADABLE/model",
    "llama_model_load: error loading model: missing tensor 'output_norm.weight'": "MODEL_UNSUPPORTED/model",
    "llama_model_load: error loading model: corrupted model: 10 tensors expected but 9 found": "MODEL_UNREADABLE/model",
    "llama_model_load: error loading model: read error: Stale file handle": "MODEL_UNREADABLE/host",
    "llama_model_load: error loading model: mmap failed: No such device": "MODEL_UNREADABLE/host",
    "llama_model_load: error loading model: error loading model vocabulary: unknown tokenizer: 'x'": (
        "MODEL_UNSUPPORTED/model"
    ),
    "llama_model_load: error loading model: unable to allocate CPU_REPACK buffer": "OUT_OF_HOST_MEMORY/plan",
    "llama_model_load: error loading model: unable to allocate Vulkan1 buffer": "OUT_OF_DEVICE_MEMORY/plan",
    "ggml_metal_buffer_init: error: failed to allocate buffer, size = 9000.00 MiB": "OUT_OF_DEVICE_MEMORY/plan",
    "ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate 900 Bytes of memory on device": (
        "OUT_OF_DEVICE_MEMORY/plan"
    ),
    "llama_init_from_model: V cache quantization requires flash_attn": "BAD_ARGUMENT/plan",
    "llama_init_from_model: K cache type q4_0 with block size 32 does not divide n_embd_head_k=80": "BAD_ARGUMENT/plan",
    "error: --model is required": "BAD_ARGUMENT/plan",
    'error while handling argument "--no-mmap": the argument has been removed. use --load-mode': "BAD_ARGUMENT/plan",
    "common_download_file: required file is not available in cache (offline mode): /c/m.gguf": "MODEL_UNREADABLE/model",
    "clip_init: failed to load model '/models/p.gguf': unknown projector type: x": "MODEL_UNSUPPORTED/model",
}

_MLX_TEXTS: dict[str, str] = {
    "RuntimeError: [metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer "
    "size of 8 bytes.": "OUT_OF_DEVICE_MEMORY/plan",
    "RuntimeError: [malloc] Unable to allocate 900000 bytes.": "OUT_OF_HOST_MEMORY/plan",
    "RuntimeError: [metal::load_device] No Metal device available.": "INCOMPATIBLE_DRIVER/host",
    "FileNotFoundError: No safetensors found in /models/m": "MODEL_UNREADABLE/model",
    "PermissionError: [Errno 13] Permission denied: '/models/m/config.json'": "MODEL_UNREADABLE/host",
    "OSError: [Errno 5] Input/output error": "MODEL_UNREADABLE/host",
    "OSError: [Errno 48] Address already in use": "ADDRESS_IN_USE/host",
    "OSError: [Errno 99] Cannot assign requested address": "BAD_ARGUMENT/plan",
    "OverflowError: bind(): port must be 0-65535.": "BAD_ARGUMENT/plan",
    "KeyError: 'model_type'": "MODEL_UNSUPPORTED/model",
    "ValueError: Received 3 parameters not in model: ": "MODEL_UNSUPPORTED/model",
    "ValueError: Expected shape (4, 4) but received shape (4, 8) for parameter x": "MODEL_UNSUPPORTED/model",
    "RuntimeError: [load_safetensors] Invalid json header length /models/m/a.safetensors": "MODEL_UNREADABLE/model",
    "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge": "MODEL_UNREADABLE/model",
    "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.": "MODEL_UNREADABLE/model",
    "ModuleNotFoundError: No module named 'mlx'": "MISSING_LIBRARY/build",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory": "MISSING_LIBRARY/host",
    "MemoryError": "OUT_OF_HOST_MEMORY/plan",
    "mlx_lm.server: error: unrecognized arguments: --frob": "BAD_ARGUMENT/plan",
}


def _said(evidence: ExitEvidence) -> str:
    verdict = classify(evidence)
    return f"{verdict.kind.value}/{verdict.blames.value}"


@pytest.mark.parametrize(("line", "expected"), _ABORTS.items())
def test_an_abort_means_what_its_line_says(line: str, expected: str) -> None:
    """SIGABRT is only how it died: the error's name decides."""
    assert _said(ExitEvidence("llama.cpp", _SERVER, signal=6, log=(line,))) == expected


@pytest.mark.parametrize(("line", "expected"), _LOADERS.items())
def test_a_loader_complaint_names_who_has_to_change(line: str, expected: str) -> None:
    """Of the build, or of a driver or toolkit of the host; in any engine's log."""
    for engine in ("llama.cpp", "stable-diffusion.cpp", "mlx", "never heard of it"):
        assert _said(ExitEvidence(engine, _SERVER, exit_code=127, log=(line,))) == expected


@pytest.mark.parametrize("prefix", ["", "0.01.237.636 E "])
@pytest.mark.parametrize(("line", "expected"), _LOAD_FAILURES.items())
def test_a_failed_load_means_what_its_line_says(line: str, expected: str, prefix: str) -> None:
    """In the older format without levels and in the newer one."""
    after = (
        prefix + "llama_model_load_from_file_impl: failed to load model",
        "main: exiting due to model loading error",
    )
    assert _said(ExitEvidence("llama.cpp", _SERVER, exit_code=1, log=(prefix + line, *after))) == expected


@pytest.mark.parametrize("line", [*_LOAD_FAILURES])
def test_debug_lines_may_say_anything(line: str) -> None:
    """A debug line can carry a model's or a user's words: it decides nothing."""
    evidence = ExitEvidence(
        "llama.cpp", _SERVER, exit_code=1, log=("0.20.001.110 D " + line, "0.20.001.111 I srv  stop: x")
    )
    assert _said(evidence) == "UNKNOWN/nobody"


@pytest.mark.parametrize(("line", "expected"), _MLX_TEXTS.items())
def test_a_python_exception_means_what_it_says(line: str, expected: str) -> None:
    """As the last line of a trace back."""
    log = ("Traceback (most recent call last):", '  File "/x/utils.py", line 1, in load', "    x()", line)
    assert _said(ExitEvidence("mlx", _MLX, exit_code=1, log=log)) == expected


@pytest.mark.parametrize(
    ("code", "expected", "runs"),
    [
        (0xC0000005, "CRASH/build", RunsHere.UNKNOWN),
        (-1073741819, "CRASH/build", RunsHere.UNKNOWN),
        (0xC00000FD, "CRASH/build", RunsHere.UNKNOWN),
        (0xC0000374, "CRASH/build", RunsHere.UNKNOWN),
        (0xC0000409, "CRASH/build", RunsHere.UNKNOWN),
        (0xC000001D, "INCOMPATIBLE_CPU/build", RunsHere.NO),
        (0xC0000135, "MISSING_LIBRARY/build", RunsHere.NO),
        (0xC0000139, "MISSING_LIBRARY/build", RunsHere.NO),
        (0xC0000142, "MISSING_LIBRARY/build", RunsHere.NO),
        (0xC0000017, "OUT_OF_HOST_MEMORY/plan", RunsHere.UNKNOWN),
        (0xC000013A, "KILLED/nobody", RunsHere.UNKNOWN),
        (3, "CRASH/build", RunsHere.UNKNOWN),
        (1, "UNKNOWN/nobody", RunsHere.UNKNOWN),
    ],
)
def test_windows_statuses(code: int, expected: str, runs: RunsHere) -> None:
    """An NTSTATUS as exit code, unsigned or signed, with nothing in the log."""
    verdict = classify(ExitEvidence("llama.cpp", _SERVER, platform="windows", exit_code=code))
    assert f"{verdict.kind.value}/{verdict.blames.value}" == expected
    assert verdict.runs_here is runs


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("kernel: Out of memory: Killed process 9 (llama-server) total-vm:1kB", "OUT_OF_HOST_MEMORY/plan"),
        ("kernel: Out of memory: Killed process 9 (chrome) total-vm:1kB", "KILLED/nobody"),
        ("cgroup memory.events: low 0 high 0 max 31 oom 2 oom_kill 1", "OUT_OF_HOST_MEMORY/plan"),
        ("cgroup memory.events: low 0 high 0 max 31 oom 0 oom_kill 0", "KILLED/nobody"),
        ("systemd: llama.service: Failed with result 'oom-kill'.", "OUT_OF_HOST_MEMORY/plan"),
        ("systemd-oomd: Killed /user.slice/llama.scope due to memory pressure", "OUT_OF_HOST_MEMORY/plan"),
        ("docker: OOMKilled: false", "KILLED/nobody"),
        ("cgroup memory.oom_control: oom_kill_disable 0, under_oom 0, oom_kill 0", "KILLED/nobody"),
    ],
)
def test_sigkill_is_told_apart_by_the_host(hint: str, expected: str) -> None:
    """Only a kill of our own process for memory is memory."""
    assert _said(ExitEvidence("llama.cpp", _SERVER, signal=9, host_hints=(hint,))) == expected


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", "DEVICE_LOST/host"),
        (
            "kernel: NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout after 6s of waiting for RPC response",
            "DEVICE_LOST/host",
        ),
        ("kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=1, MMU Fault: ENGINE GRAPHICS", "CRASH/build"),
        ("kernel: amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", "DEVICE_LOST/host"),
    ],
)
def test_a_device_that_the_kernel_lost_is_not_the_builds_fault(hint: str, expected: str) -> None:
    """The engine sees a failed launch in both cases; the kernel knows which one it was."""
    log = ("0.42.118.332 E CUDA error: unspecified launch failure", "/x/ggml-cuda.cu:109: CUDA error")
    assert (
        _said(ExitEvidence("llama.cpp", _SERVER, signal=6, reached_ready=True, log=log, host_hints=(hint,))) == expected
    )


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2, "UNKNOWN/build"),
        (13, "UNKNOWN/host"),
        (8, "INCOMPATIBLE_CPU/build"),
        (7, "BAD_ARGUMENT/plan"),
        (11, "OUT_OF_HOST_MEMORY/host"),
        (12, "OUT_OF_HOST_MEMORY/host"),
        (80, "MISSING_LIBRARY/build"),
    ],
)
def test_failed_starts(number: int, expected: str) -> None:
    """No process, no log: the system's errno is all there is."""
    assert _said(ExitEvidence("llama.cpp", _SERVER, spawn_errno=number, spawn_error="refused")) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("llama_model_load: error loading model: make_cpu_buft_list: no CPU backend found",), "MISSING_LIBRARY/build"),
        (("llama_model_load: error loading model: unordered_map::at: key not found",), "MODEL_UNSUPPORTED/model"),
        (("main: error: unable to load model",), "MODEL_UNREADABLE/model"),
        (('ERR [ main] couldn\'t bind HTTP server socket | hostname="::1" port="1"',), "ADDRESS_IN_USE/host"),
        (("couldn't bind to server socket: hostname=127.0.0.1 port=8080",), "ADDRESS_IN_USE/host"),
        (("ggml_vulkan: No devices found.", "usage:"), "INCOMPATIBLE_DRIVER/host"),
        (("llama_init_from_model: failed to initialize Vulkan0 backend",), "INCOMPATIBLE_DRIVER/host"),
        (("ggml_cuda_host_malloc: failed to allocate 9.00 MiB of pinned memory: out of memory",), "UNKNOWN/nobody"),
        (("warning: failed to mlock 9-byte buffer: Cannot allocate memory",), "UNKNOWN/nobody"),
    ],
)  # fmt: skip
def test_older_formats_and_harmless_lines(lines: tuple[str, ...], expected: str) -> None:
    """Servers of other years; and warnings that only sound like a cause."""
    assert _said(ExitEvidence("llama.cpp", _SERVER, exit_code=1, log=lines)) == expected
