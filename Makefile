# `make demo` and `make test` set up .venv by themselves; all they need is Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What `make demo` needs, and all that tests and checks need.
DEMO_STAMP := $(VENV)/.demo
STAMP := $(VENV)/.installed
INSTALL := PYTHONWARNINGS="ignore:Editable installation" $(BIN)/pip install -q --no-compile --disable-pip-version-check -c constraints.txt
# A CUDA machine installs its own torch build first, see the README.
TORCH ?= torch==2.13.0
# Tests by file on every core; those that take Ray stay together, on the one Ray.
PARALLEL ?= -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo test test-data test-cluster test-rest test-interop test-oldest check check-style check-types check-pages format bench guard clean

setup: $(STAMP)

# setuptools warns that a folder multicse/ in the working directory comes before the installed package: that is intended.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@echo "Installing the pinned libraries in $(VENV): once, 2 to 15 minutes; pip shows only warnings and errors."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --upgrade pip
	$(BIN)/pip install -q --no-compile --disable-pip-version-check "$(TORCH)"
	$(INSTALL) -e ".[demo]"
	@touch $@

$(STAMP): $(DEMO_STAMP)
	@echo "Installing the libraries of the tests: once, minutes."
	$(INSTALL) -e ".[test,check,cluster]"
	@touch $@

demo: $(DEMO_STAMP)
	$(BIN)/python pipelines/visualcse.py demo $(if $(SENTEVAL),--evaluation.data $(SENTEVAL) --evaluation.final lee lee-all stsb-dev)

test: $(STAMP)
	$(BIN)/python -m pytest tests -m "not cluster" $(PARALLEL)

test-data: $(STAMP)
	$(BIN)/python -m pytest tests -m "data and not cluster" $(PARALLEL)

test-cluster: $(STAMP)
	$(BIN)/python -m pytest tests -m cluster $(PARALLEL)

# All that `make test` leaves out in a clone without benchmark data; at once, so that no core idles while the other ends.
# LIMIT="--seconds 3600" begins no test after an hour; what it leaves out is among the skipped tests in the summary.
LIMIT ?=
test-rest: $(STAMP)
	$(BIN)/python -m pytest tests -m "cluster or data" $(PARALLEL) $(LIMIT)
	MULTICSE_GPU_TESTS=cpu $(BIN)/python -m pytest -m gpu tests/gpu/test_gpu_resume.py -k fp32  # that they still run

# sentence-transformers' ONNX backend is optimum, which ends at transformers 4.57: an environment of its own.
INTEROP := $(VENV)-interop
INTEROP_STAMP := $(INTEROP)/.installed

$(INTEROP_STAMP): requirements-interop.txt
	@test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/pip install -q --disable-pip-version-check "$(TORCH)" -r requirements-interop.txt
	@touch $(INTEROP_STAMP)

test-interop: $(STAMP) $(INTEROP_STAMP)
	MULTICSE_INTEROP=$(abspath $(INTEROP)) $(BIN)/python -m pytest tests/interop

# The oldest versions that pyproject.toml allows, of all libraries but torch; pip cannot choose them, uv can.
OLDEST := $(VENV)-oldest
OLDEST_STAMP := $(OLDEST)/.installed

$(OLDEST_STAMP): pyproject.toml
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install -q --disable-pip-version-check uv "$(TORCH)"
	echo "$(TORCH)" > $(OLDEST)/torch.txt
	$(OLDEST)/bin/uv pip install -q --python $(OLDEST)/bin/python --resolution lowest-direct --override $(OLDEST)/torch.txt -e ".[test,check]"
	@touch $(OLDEST_STAMP)

test-oldest: $(OLDEST_STAMP)
	$(OLDEST)/bin/python -m pytest tests -m "not cluster" $(PARALLEL)

check: check-style check-types check-pages

check-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m docs.words

check-types: $(STAMP)
	$(BIN)/mypy

check-pages: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The rows of docs/dev/performance.md.
bench: $(STAMP)
	for name in floor road engine workers embed; do $(BIN)/python -m benchmarks.speed.$$name || exit 1; done

# Ratios that are clearly worse than recorded end it with an error.
guard: $(STAMP)
	$(BIN)/python -m benchmarks.guard

clean:
	rm -rf $(VENV) $(INTEROP) $(OLDEST) runs mlruns mlartifacts mlflow.db
