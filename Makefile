# Everything a new machine needs is Python 3.11 or newer with venv, and make. `make run` and `make test` do the rest.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CODE := engines supervisor tests bench
# Installed editable: a change in the code needs no second install, a change in pyproject.toml does.
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

BENCH ?=

# How many processes share the tests: as many as there are cores, at most four; 0 is this one.
WORKERS ?= auto

.DEFAULT_GOAL := help
.PHONY: help run test test-slow unit lint fmt bench clean

help:
	@echo "make run        install into $(VENV), fetch the demo model, serve it on 127.0.0.1:8080 (ARGS=... for more)"
	@echo "make test       everything that CI runs: lint, types, layers, tests"
	@echo "make unit       the quick tests only"
	@echo "make test-slow  the slow tests"
	@echo "make lint       ruff, mypy and import-linter"
	@echo "make fmt        format and fix what can be fixed"
	@echo "make bench      measure side by side (BENCH=--quick for a first look)"
	@echo "make clean      remove $(VENV) and every cache"

run: $(RUN_STAMP)
	$(BIN)/enginehouse demo $(ARGS)

# A test that hangs ends its process, which another one would hang in again: so none takes its place, and the run ends.
test: lint
	$(BIN)/python -m tests.support.sd_server
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
		--durations=15

unit: $(DEV_STAMP)
	$(BIN)/python -m pytest -q tests/unit tests/architecture

test-slow: $(DEV_STAMP)
	$(BIN)/python -m pytest -m slow

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_STAMP)
	for name in cold_start added_latency requests streams idle own_cpu estimates recovery swap pictures return simulate decisions translation mlx quota; do $(BIN)/python -m bench.$$name $(BENCH) || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# compat: a plain path instead of an import hook, which costs every start 20 ms.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable
OFFLINE = { echo "make: pip could not install the packages, see above. Without a network, point pip at an index that" \
	"can be reached (PIP_INDEX_URL)." >&2; exit 1; }

# The extras of the tests include the demo's: one venv serves both.
$(DEV_STAMP): $(VENV)/.made pyproject.toml
	@echo "installing Enginehouse and its tests into $(VENV), once"
	@$(PIP) ".[dev,demo,mlx]" || $(OFFLINE)
	@touch $@ $(RUN_STAMP)

$(RUN_STAMP): $(VENV)/.made pyproject.toml
	@echo "installing Enginehouse into $(VENV), once"
	@$(PIP) ".[demo]" || $(OFFLINE)
	@touch $@

# Says what is missing in words instead of a traceback. Making a venv over an unfinished or older one does no harm.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: there is no '$(PYTHON)' here. Install Python 3.11 or newer" \
			"(Debian: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $$($(PYTHON) --version) is too old, Enginehouse needs 3.11 or newer." \
			"Name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) can't make virtual environments." \
			"Install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
