"""What a child gets to see of our environment."""

from supervisor.processes.environment import child_environment

_OWN = {
    "PATH": "/bin",
    "HOME": "/root",
    "LANG": "C",
    "LC_TIME": "C",
    "TZ": "UTC",
    "TMPDIR": "/tmp",
    "SHELL": "/bin/sh",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUDA_LICENSE_TOKEN": "x",
    "HF_TOKEN": "x",
    "OPENAI_API_KEY": "x",
    "db_password": "x",
}


def test_a_child_gets_the_minimum_and_what_its_engine_needs() -> None:
    """Only the base names and the adapter's patterns are handed on."""
    minimum = {"PATH", "HOME", "LANG", "LC_TIME", "TZ", "TMPDIR"}
    assert set(child_environment(_OWN, (), {})) == minimum
    assert set(child_environment(_OWN, ("CUDA_*",), {})) == minimum | {"CUDA_VISIBLE_DEVICES"}


def test_a_secret_is_never_handed_on_even_if_a_pattern_matches() -> None:
    """Names that look like secrets stay here, in any case of letters."""
    handed_on = child_environment(_OWN, ("*",), {})
    assert "SHELL" in handed_on
    assert not {"HF_TOKEN", "OPENAI_API_KEY", "CUDA_LICENSE_TOKEN", "db_password"} & set(handed_on)


def test_what_is_given_on_top_wins_and_may_be_a_secret() -> None:
    """``extra`` is the owner's word: it overrides, and may carry the launch's own key."""
    handed_on = child_environment(_OWN, (), {"TZ": "CET", "LLAMA_API_KEY": "k"})
    assert handed_on["TZ"] == "CET"
    assert handed_on["LLAMA_API_KEY"] == "k"
