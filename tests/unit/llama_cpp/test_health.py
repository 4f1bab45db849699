"""llama-server's life signs."""

import json

import pytest

from engines.contract import Health, LogSignal
from engines.llama_cpp.generation import can_stream, is_progress, name_stop, prepare_generation, stop_string
from engines.llama_cpp.health import busy_slots, read_health, read_line


@pytest.mark.parametrize(
    ("line", "signal"),
    [
        ("0.00.352.759 I srv  llama_server: model loaded", LogSignal.MODEL_LOADED),
        ("0.00.352.774 I srv  llama_server: listening on unix:///tmp/s.sock", LogSignal.LISTENING),
        ("main: server is listening on http://127.0.0.1:8080 - starting the main loop", LogSignal.LISTENING),
        ("0.00.007.173 I srv    load_model: loading model 'm.gguf'", None),
        ("", None),
    ],
)
def test_announcements_are_read_from_the_log(line: str, signal: LogSignal | None) -> None:
    """Old and new wordings are known; other lines say nothing."""
    assert read_line(line) is signal


@pytest.mark.parametrize(
    ("status", "body", "health"),
    [
        (200, b'{"status":"ok"}', Health.READY),
        (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', Health.LOADING),
        (503, b"", Health.SICK),
        (500, b"", Health.SICK),
    ],
)
def test_health_answers_are_told_apart(status: int, body: bytes, health: Health) -> None:
    """Loading is not sick."""
    assert read_health(status, body) is health


def test_busy_slots_are_counted() -> None:
    """Only slots that work count; an answer that can't be read is unknown, not zero."""
    assert busy_slots(b'[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]') == 1
    assert busy_slots(b'{"error":{}}') is None
    assert busy_slots(b"nonsense") is None


def test_every_generation_is_asked_as_a_stream_with_progress() -> None:
    """It is the only form in which llama-server notices that its client left."""
    sent = prepare_generation({"messages": [], "stream": False})
    assert sent["stream"] is True
    assert sent["return_progress"] is True
    assert sent["stream_options"] == {"include_usage": True}


def test_a_client_does_not_choose_its_slot() -> None:
    """A slot may hold another caller's conversation."""
    assert "id_slot" not in prepare_generation({"id_slot": 1})


def test_tools_with_logprobs_are_asked_whole() -> None:
    """The engine refuses that pair as a stream; each alone is streamed."""
    tool = {"type": "function", "function": {"name": "f"}}
    assert not can_stream({"tools": [tool], "logprobs": True})
    assert can_stream({"tools": [tool]})
    assert can_stream({"logprobs": True, "tools": []})


def test_a_clients_own_stream_options_stand() -> None:
    """Usage is added only where we fold; a client's stream gets what it asked for."""
    assert "stream_options" not in prepare_generation({"stream": True})
    assert prepare_generation({"stream_options": {"x": 1}})["stream_options"] == {"x": 1, "include_usage": True}


def test_progress_is_told_from_text_about_progress() -> None:
    """A model that writes the words of a progress chunk is still content: quotes are escaped inside a string."""
    assert is_progress(b'{"choices":[],"prompt_progress":{"total":2,"cache":0,"processed":0,"time_ms":0}}')
    assert not is_progress(b'{"choices":[{"delta":{"content":"\\"prompt_progress\\":{}"}}]}')


@pytest.mark.parametrize(
    "line",
    [
        "warning: no usable GPU found, --gpu-layers option will be ignored",
        "0.00.041.118 E ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
        "ggml_vulkan: No devices found.",
        "load_tensors: offloaded 0/31 layers to GPU",
    ],
)
def test_a_gpu_that_can_not_be_used_is_noticed(line: str) -> None:
    """Recorded lines of engines that go on with the CPU where a GPU was meant."""
    assert read_line(line) is LogSignal.NO_GPU


@pytest.mark.parametrize(
    "line", ["load_tensors: offloaded 10/31 layers to GPU", "load_tensors: offloaded 31/31 layers"]
)
def test_a_gpu_that_is_used_is_not_missed(line: str) -> None:
    """Some layers are enough: the plan says how many."""
    assert read_line(line) is None


def test_the_stop_string_is_asked_for_and_found() -> None:
    """The last chunk of a verbose answer names it; one that ended by itself names none, nor does a text about it."""
    assert name_stop({"stop": ["a"]}) == {"stop": ["a"], "verbose": True}
    assert stop_string(b'{"choices":[],"__verbose":{"stopping_word":"###","stop_type":"word"}}') == "###"
    assert stop_string(b'{"choices":[],"__verbose":{"stopping_word":"","stop_type":"eos"}}') is None
    text = json.dumps({"choices": [{"delta": {"content": '"stopping_word":"x"'}}]}, separators=(",", ":"))
    assert stop_string(text.encode()) is None
    for odd in (b'[1,{"stopping_word":"x"}]', b'{"__verbose":[{"stopping_word":"x"}]}', b'{"a":{"stopping_word":"x"}}'):
        assert stop_string(odd) is None
