# Every target sets up what it needs: on a fresh machine, `make quickstart` or `make test` is all.
# Needs Python 3.11 or newer, make and a C++ compiler (without one, hotloop trains uncompiled).
#
#   make setup PYTHON=python3.12            another interpreter
#   make setup PIP_FLAGS='--index-url ...'  another package index, e.g. PyTorch's CPU-only one

# An environment that is there keeps its Python unless another one is asked for.
PYTHON ?= python3
PIP_FLAGS ?=
PACKAGES ?= -c constraints.txt -e '.[dev]'
# One more than two CPUs: more than a quarter of the time each waits for what it started.
WORKERS ?= 3
# Tests that need a GPU are chosen only where there is one.
MARKS := not slow$(shell nvidia-smi -L >/dev/null 2>&1 || echo " and not gpu")

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VERSION := import sys; print(*sys.version_info[:3], sep=".")
HAS := $(shell $(BIN)/python -c '$(VERSION)' 2>/dev/null)
ASKED := $(if $(filter file,$(origin PYTHON)),$(HAS),$(shell $(PYTHON) -c '$(VERSION)' 2>/dev/null))

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test check proof patients-record surface format clean

help:
	@echo "make quickstart   train a small language model, plain and with hotloop's settings, and compare"
	@echo "make test         run the tests"
	@echo "make check        formatter, linter, types, import rule, public surface"
	@echo "make proof        planted delays, patients, the trainer against the plain loop, how often the judge is wrong, slow tests (35 minutes)"
	@echo "make patients-record  measure the doctor's patients anew, for the tests that replay them (10 minutes)"
	@echo "make surface      write the public surface to tests/golden/surface"
	@echo "make format       format and sort imports"
	@echo "make clean        remove what the others made, except runs/"

setup: $(READY)

ifneq ($(ASKED),$(HAS))
.PHONY: $(READY)
endif

# The stamp is written last, so a set-up that was interrupted is taken up again.
$(READY): pyproject.toml constraints.txt
ifneq ($(and $(HAS),$(filter $(HAS),$(ASKED))),)
	@echo "installing packages into $(VENV) (Python $(HAS))"
else
	@$(PYTHON) -c '' 2>/dev/null || \
	  { echo "error: $(PYTHON) is not installed or does not start; hotloop needs Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: hotloop needs Python 3.11 or newer, and $(PYTHON) is `$(PYTHON) -V 2>&1`" >&2; \
	    echo "  choose another one: make setup PYTHON=python3.12" >&2; exit 2; }
	@echo "creating $(VENV) with `$(PYTHON) -V`$(if $(HAS), in place of the one with Python $(HAS)); torch is large: this can take 10 minutes"
	@$(PYTHON) -m venv --clear $(VENV) || \
	  { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
endif
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) $(PACKAGES)
	@$(BIN)/python -m compileall -qq -j 0 -x "/(tests|ray|transformers/models/(?!auto)\w+)/" $(VENV)/lib || true # as pip does, but on all CPUs, and without what next to nobody imports; a package may hold what is no Python
	@touch $(READY)

quickstart: setup
	$(BIN)/hotloop quickstart --out runs/quickstart

# Compiled once for the hundreds of processes that the tests start, also where Python is told not to.
test: setup
	@$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKS)"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/surface.py --check
	$(BIN)/python tools/rooms.py

# One at a time: these measure.
proof: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/planted_delays.py
	$(BIN)/python benchmarks/judge_validation.py benchmarks/results/judge_validation.md
	$(BIN)/python benchmarks/off_against_plain.py
	$(BIN)/python tests/patients/live.py
	$(BIN)/python -m pytest -n 2 -m "slow and not gpu"

patients-record: setup
	$(BIN)/python tests/patients/record.py

surface: setup
	$(BIN)/python tools/surface.py

format: setup
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
