# Needs only Python with venv, and make.  `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The peers of the benchmarks have an environment of their own: XGBoost 3.4 and hessboost 0.4 need Python 3.12.
BENCH_PYTHON ?= python3.12
BENCH_VENV ?= .venv-bench
PIP = $(@D)/bin/python -m pip --disable-pip-version-check --quiet

# The locks have only wheels (no compiler is needed) and are resolved without the settings of this machine.
INSTALL_LOCK = $(PIP) install --require-hashes --only-binary :all: -r
CLEAR_UV = env -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_FIND_LINKS
COMPILE = $(CLEAR_UV) $(BIN)/uv pip compile --no-config --quiet --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate $(UPGRADE)

.DEFAULT_GOAL := help
.PHONY: help setup dev demo test test-slow lint format bench bench-all bench-letor docs dist wheel lock clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime ## Create the environment for the commands.

dev: $(VENV)/.dev ## Add the packages for tests and checks.

demo: $(VENV)/.runtime ## Set up, then run the demo on generated judgments.
	$(BIN)/rankmill demo

# Bytecode is kept whatever the environment says: pytest rewrites every assertion, and tests start commands by the hundred.
test test-slow: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev ## Set up, then run the tests in three processes (without slow ones): each waits at times.
	$(BIN)/python -m pytest -n 3 --dist loadfile

test-slow: $(VENV)/.dev ## Set up, then run the slow tests.
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile -o faulthandler_timeout=3000

lint: $(VENV)/.dev ## Check style, format and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## Format the code.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A LETOR folder with the parts S1 to S5; MQ2008 if RANKMILL_TEST_DATA is set.
DATA ?= $(RANKMILL_TEST_DATA:%=%/mq2008)
# Further options, for `bench` such as "--pairs 5", for `bench-all` those of benchmarks/train.py, such as "--pairs 1 --threads 2".
BENCH ?=

bench: $(BENCH_VENV)/.bench ## Set up with the peers, then print one page of speeds beside theirs and beside the last page (an hour).
	$(BENCH_VENV)/bin/python -m benchmarks.ratios $(BENCH)

bench-all: $(BENCH_VENV)/.bench ## Set up with the peers, then measure training and ingest in detail (hours; with DATA also on MQ2008).
	$(BENCH_VENV)/bin/python benchmarks/train.py $(DATA:%=--letor %) $(BENCH)
	$(BENCH_VENV)/bin/python benchmarks/train.py --compare oblivious --cases mslr $(BENCH)
	$(BENCH_VENV)/bin/python benchmarks/histogram.py
	$(BENCH_VENV)/bin/python benchmarks/cost.py
	$(BENCH_VENV)/bin/python benchmarks/ingest.py speed

bench-letor: $(BENCH_VENV)/.bench ## Set up with the peers, then run the five folds of the LETOR folder DATA.
	@test -n "$(DATA)" || { echo "usage: make bench-letor DATA=path/to/letor/folder"; exit 2; }
	$(BENCH_VENV)/bin/python benchmarks/letor5.py $(DATA) --peers

docs: $(VENV)/.docs ## Set up, then build the documentation into site/; warnings and broken links are errors.
	$(BIN)/python -m rankmill.reference.pages --check docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html; with search: $(BIN)/python -m http.server --directory site"

# Further options of the build, such as --no-isolation.
BUILD ?=

dist: $(VENV)/.dev ## Build the sdist, the wheel, and for Linux on x86-64 one with kernels, in dist/, and check them as package indexes do.
	rm -rf dist
	$(BIN)/python -m build $(BUILD)
	$(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),$(MAKE) wheel)
	$(CLEAR_UV) $(BIN)/uvx twine check --strict dist/*
	ls -l dist

# The wheel has no shared library: its kernels call the C library by name alone, as any version since 2.17 answers.
wheel: $(VENV)/.dev ## Add a wheel with compiled kernels for this version of Python to dist/, from the sdist there (minutes).
	rm -rf build/wheel && mkdir -p build/wheel
	tar -xzf dist/*.tar.gz -C build/wheel --strip-components=1
	cd build/wheel && PYTHONPATH=. $(abspath $(BIN))/python -m rankmill.shipped
	$(BIN)/python -m build $(BUILD) --wheel --outdir dist -C=--build-option=--plat-name=manylinux_2_17_x86_64 \
		-C=--build-option=--python-tag=$$($(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])') build/wheel

lock: $(VENV)/.dev ## Resolve the locks again (UPGRADE=--upgrade for the newest versions).
	$(COMPILE) pyproject.toml locks/build.in -o locks/runtime.txt
	$(COMPILE) --extra cloud -c locks/runtime.txt pyproject.toml locks/build.in -o locks/cloud.txt
	$(COMPILE) --extra dask -c locks/runtime.txt pyproject.toml locks/build.in -o locks/dask.txt
	$(COMPILE) --extra dev -c locks/runtime.txt pyproject.toml locks/build.in -o locks/dev.txt
	$(COMPILE) --extra bench -c locks/dev.txt pyproject.toml locks/build.in -o locks/bench.txt
	$(COMPILE) --extra docs -c locks/dev.txt pyproject.toml locks/build.in -o locks/docs.txt

clean: ## Remove the environment and all generated files.
	rm -rf $(VENV) $(BENCH_VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Not removed as an intermediate file, though only other patterns name it.
.PRECIOUS: %/.python %/.runtime
$(BENCH_VENV)/.python: PYTHON = $(BENCH_PYTHON)

# One stamp per lock: set-up runs once, and again when a lock or pyproject.toml changes.
%/.python:
	@echo "Setting up $(@D): this happens once, and again when a lock changes."
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) else "rankmill needs Python 3.11 to 3.13 (set PYTHON=...), this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(@D)
	@touch $@

%/.runtime: locks/runtime.txt pyproject.toml %/.python
	$(INSTALL_LOCK) locks/runtime.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

%/.dev: locks/dev.txt %/.runtime
	$(INSTALL_LOCK) locks/dev.txt
	@touch $@

%/.bench: locks/bench.txt %/.runtime
	$(INSTALL_LOCK) locks/bench.txt
	@touch $@

%/.docs: locks/docs.txt %/.runtime
	$(INSTALL_LOCK) locks/docs.txt
	@touch $@
