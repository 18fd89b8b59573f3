# Needs Python 3.11 or newer (with venv) and make; all else goes into .venv.
#
#   make audit      audit three trainers on real digits; the report lands in reports/runs/digits
#   make test       lint, types, doctests, tests
#   make evidence   measure what is claimed of the bounds, into docs/methods.md (five minutes on two cores)
#   make bench      time every bound beside jax_privacy; `make peers` installs it into .venv-peers, apart from .venv
#   make bench-accounting   time claims and calibration beside dp-accounting and Opacus
#   make bench-attacks      time LiRA and RMIA on a million records, shadows to report; the study of LiRA's variances
#   make bench-trainers     time private steps, stacks of models and gradient canaries beside plain torch and Opacus
#
# torch from PyPI brings CUDA on Linux. For the small CPU build:
#   make audit PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3.11 python3
PIP_FLAGS ?=
EXTRAS ?= dev,opacus
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.installed
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

PEER := .venv-peers/jax

.PHONY: audit test test-all lint samples demo evidence peers bench bench-accounting bench-attacks bench-trainers clean
.DELETE_ON_ERROR:

audit: $(READY)
	$(BIN)/dpaudit run digits --out reports/runs/digits

test: lint
	$(PYTEST) -m "not slow"

test-all: lint
	DPAUDIT_FULL=1 $(PYTEST)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/dpaudit demo

evidence: $(READY)
	$(BIN)/python benchmarks/evidence.py --workers $(WORKERS)

peers: $(PEER)/.installed

bench: peers
	$(BIN)/python benchmarks/bounds.py

bench-accounting: $(READY)
	$(BIN)/python benchmarks/accounting.py

bench-attacks: $(READY)
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/shrinkage.py

bench-trainers: $(READY)
	$(BIN)/python benchmarks/trainers.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/gradient_canaries.py

$(PEER)/.installed: | $(READY)
	$(BIN)/python -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --disable-pip-version-check jax-privacy==2.0.0
	touch $@

# What is committed under reports/samples is what these commands made, and only the part that may be released.
samples: $(READY)
	$(BIN)/dpaudit run digits --out reports/runs/sample-digits --fresh
	rm -rf reports/samples/digits
	mkdir -p reports/samples
	cp -R reports/runs/sample-digits/release reports/samples/digits
	$(BIN)/dpaudit attack digits --vulnerable --out reports/runs/sample-vulnerable --fresh
	rm -rf reports/samples/vulnerable
	cp -R reports/runs/sample-vulnerable/release reports/samples/vulnerable
	rm -rf reports/samples/demo
	$(BIN)/dpaudit demo --out reports/samples/demo

clean:
	rm -rf .venv .venv-peers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find dpaudit tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml constraints.txt
	@for python in $(PYTHON); do \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  echo "installing into .venv with $$python (once, about a minute)"; \
	  "$$python" -m venv .venv && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e ".[$(EXTRAS)]" && \
	  touch $@; \
	  exit $$?; \
	done; \
	echo "dpaudit needs Python 3.11 or newer with venv (Debian: apt-get install python3-venv); tried: $(PYTHON)" >&2; \
	exit 1
