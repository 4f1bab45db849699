"""How lines, exits and hints are weighed against each other."""

from __future__ import annotations

from engines.contract import Blame, ExitEvidence, FailureKind, RunsHere
from engines.evidence import classify

_ARGV = ("/opt/llama/llama-server", "-m", "/models/m.gguf", "--host", "127.0.0.1", "--port", "18080")
_READY = "0.04.001.801 I srv  llama_server: model loaded"
_OOM = "0.03.001.000 E cuda_alloc_buffer: allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory"


def test_a_stop_that_was_asked_for_blames_nobody() -> None:
    """Whatever the log says, and even if it died of a fault on its way out: a planned stop never strikes."""
    for signal in (15, 9, 11, 6):
        verdict = classify(ExitEvidence("llama.cpp", _ARGV, signal=signal, asked_to_stop=True, log=(_OOM,)))
        assert (verdict.kind, verdict.blames) == (FailureKind.KILLED, Blame.NOBODY)


def test_what_a_start_survived_did_not_end_it() -> None:
    """An allocation that failed while fitting, before readiness, is not why it crashed an hour later."""
    verdict = classify(
        ExitEvidence("llama.cpp", _ARGV, signal=11, reached_ready=True, log=(_OOM, *(["x"] * 9), _READY))
    )
    assert verdict.kind is FailureKind.CRASH


def test_the_same_line_after_readiness_is_the_cause() -> None:
    """A crash in the error path of a failed allocation is out of memory."""
    verdict = classify(ExitEvidence("llama.cpp", _ARGV, signal=11, reached_ready=True, log=(_READY, _OOM)))
    assert (verdict.kind, verdict.runs_here) == (FailureKind.OUT_OF_DEVICE_MEMORY, RunsHere.YES)


def test_an_illegal_instruction_outweighs_the_log() -> None:
    """SIGILL is the processor's word, by signal, by a shell's code, or by the kernel's line."""
    for evidence in (
        ExitEvidence("llama.cpp", _ARGV, signal=4, log=(_OOM,)),
        ExitEvidence("llama.cpp", _ARGV, exit_code=132, log=(_OOM,)),
        ExitEvidence("llama.cpp", _ARGV, platform="macos", signal=4),
    ):
        verdict = classify(evidence)
        assert (verdict.kind, verdict.blames, verdict.runs_here) == (
            FailureKind.INCOMPATIBLE_CPU,
            Blame.BUILD,
            RunsHere.NO,
        )


def test_signal_numbers_are_those_of_the_platform() -> None:
    """10 is SIGUSR1 on Linux and SIGBUS on macOS."""
    assert classify(ExitEvidence("llama.cpp", _ARGV, signal=10)).kind is FailureKind.KILLED
    assert classify(ExitEvidence("llama.cpp", _ARGV, signal=10, platform="macos")).kind is FailureKind.CRASH


def test_our_own_stop_leaves_only_the_log() -> None:
    """A start that stood still was killed by us: the signal says nothing, the log may."""
    silent = classify(ExitEvidence("mlx", _ARGV, signal=9, stopped_by_supervisor=True))
    assert (silent.kind, silent.blames) == (FailureKind.UNKNOWN, Blame.NOBODY)
    spoken = ExitEvidence(
        "mlx", _ARGV, signal=9, stopped_by_supervisor=True, log=("ValueError: Model type x not supported.",)
    )
    assert classify(spoken).kind is FailureKind.MODEL_UNSUPPORTED


def test_a_port_above_the_last_is_seen_in_the_arguments() -> None:
    """The server hangs with such a port and prints nothing about it."""
    argv = (*_ARGV[:-1], "70000")
    verdict = classify(ExitEvidence("llama.cpp", argv, signal=9, stopped_by_supervisor=True))
    assert (verdict.kind, verdict.blames) == (FailureKind.BAD_ARGUMENT, Blame.PLAN)


def test_a_lost_device_explains_an_invalid_device() -> None:
    """The refused argument is the consequence of a driver that did not answer."""
    log = (
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
        'error while handling argument "--device": invalid device: CUDA0',
        "to show complete usage, run with -h",
    )
    verdict = classify(ExitEvidence("llama.cpp", _ARGV, exit_code=1, log=log))
    assert (verdict.kind, verdict.blames, verdict.runs_here) == (
        FailureKind.INCOMPATIBLE_DRIVER,
        Blame.HOST,
        RunsHere.NO,
    )
    assert classify(ExitEvidence("llama.cpp", _ARGV, exit_code=1, log=log[1:])).kind is FailureKind.BAD_ARGUMENT


def test_a_device_that_did_not_come_up_does_not_explain_a_bad_model() -> None:
    """Engines go on without it: a nearer cause wins."""
    log = (
        "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        "gguf_init_from_reader: invalid magic characters: '<!DO', expected 'GGUF'",
    )
    assert classify(ExitEvidence("llama.cpp", _ARGV, exit_code=1, log=log)).kind is FailureKind.MODEL_UNREADABLE


def test_a_failing_disk_is_the_hosts() -> None:
    """A bus error on a mapped file, with an I/O error in the kernel's log."""
    hint = "kernel: blk_update_request: I/O error, dev sda, sector 1"
    verdict = classify(ExitEvidence("llama.cpp", _ARGV, signal=7, host_hints=(hint,)))
    assert (verdict.kind, verdict.blames) == (FailureKind.MODEL_UNREADABLE, Blame.HOST)


def test_127_is_the_loaders_unless_a_shell_stands_between() -> None:
    """With the loader's line lost, the code still tells."""
    assert classify(ExitEvidence("llama.cpp", _ARGV, exit_code=127)).kind is FailureKind.MISSING_LIBRARY
    shell = ExitEvidence("llama.cpp", ("/bin/bash", "-c", "llama-server"), exit_code=127)
    assert (classify(shell).kind, classify(shell).runs_here) == (FailureKind.UNKNOWN, RunsHere.NO)


def test_an_abort_frame_tells_of_a_check_when_its_line_is_lost() -> None:
    """The back trace outlives the message now and then."""
    log = (
        "#2  0x00007f in ggml_abort () from /opt/libggml-base.so.0",
        "#3  0x00007f in llama_decode () from /opt/x.so",
    )
    assert classify(ExitEvidence("llama.cpp", _ARGV, signal=6, log=log)).kind is FailureKind.ENGINE_ASSERT


def test_the_debuggers_own_trouble_is_not_the_engines() -> None:
    """gdb, started by the abort, can't load its libraries or find source files."""
    log = (
        "gdb: error while loading shared libraries: libboost.so.1: cannot open shared object file",
        "30\t../sysdeps/unix/sysv/linux/wait4.c: No such file or directory.",
        "bash: ../sysdeps/wait4.c: x",
    )
    assert classify(ExitEvidence("llama.cpp", _ARGV, signal=6, log=log)).kind is FailureKind.CRASH


def test_an_image_server_on_a_taken_port_says_that_it_listens() -> None:
    """It leaves with 0, and was never ready."""
    evidence = ExitEvidence(
        "stable-diffusion.cpp", exit_code=0, log=("[INFO ] main.cpp:148  - listening on: 127.0.0.1:1",)
    )
    assert classify(evidence).kind is FailureKind.ADDRESS_IN_USE


def test_the_sentence_quotes_the_deciding_line() -> None:
    """The owner sees what was decided, and by which words."""
    why = classify(ExitEvidence("llama.cpp", _ARGV, exit_code=1, log=(_OOM,))).why
    assert "Device memory ran out" in why
    assert "cudaMalloc failed: out of memory" in why
