# Thin: each target is one command that you could type yourself. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.made
DEV    := $(VENV)/.made-dev

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench chaos chaos-train docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Surefoot needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(DEV)

demo: $(STAMP) ## train a small GPT through real preemptions, about 3 minutes on 2 cores
	$(BIN)/surefoot run examples/gpt/job.yaml

test: $(DEV) ## every test
	$(BIN)/python -m pytest

check: $(DEV) ## style, types, imports, tidiness: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/tidy

bench: $(DEV) ## every benchmark, quick; fails if a bar is missed
	@failed=; for file in benchmarks/[!_]*.py; do \
	  echo "== $$file"; $(BIN)/python "$$file" --quick || failed="$$failed $$file"; \
	done; test -z "$$failed" || { echo "bars missed in:$$failed"; exit 1; }

chaos: $(DEV) ## 300 storms round the controller; SEED=17 repeats one
	$(BIN)/python -m surefoot.testing.chaos $(if $(SEED),--seed $(SEED),--seeds 300)

chaos-train: $(DEV) ## random faults on real training for ten minutes; SEED=17 repeats one
	$(BIN)/python benchmarks/chaos_train.py $(if $(SEED),--seed $(SEED),--minutes 10)

docs: $(DEV) ## check that the pages' links and commands hold
	$(BIN)/python -m pytest tests/tidy/test_docs.py

clean: ## remove what the tools made; keeps .venv
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-out bench-out
