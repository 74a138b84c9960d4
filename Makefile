# make demo    train the language model on 2 workers and 1 parameter server
# make test    lint, build the documentation, run every test
# make bench   run a short version of the evaluation, under 20 minutes in all
# make bench-full    run all of it, in hours, and keep it in docs/results and docs/img
# make setup   what all need: .venv, the package, Horovod (each done once)
# make sanitize    try the changed transport of Horovod under sanitizers: 4 minutes
# make lint, make docs, make format, make clean
#
# make PYTHON=/path/to/python3.11 setup    chooses the interpreter of .venv

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

# First that is there and works: a name on the path may be a shim without a Python
# behind it, and Debian's python3 may lack the module venv.
PYTHONS := python3.12 python3.11 python3 python
PYTHON ?=

# TensorFlow's notices at start-up hide what a reader came to see.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo bench bench-full test sanitize lint format docs clean

help:
	@sed -n 's/^# \{0,1\}//; /^$$/q; p' Makefile

setup: $(VENV)/.horovod

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" \
	  keras-parallax run -np 2 --servers 1 -- python examples/language_model.py

# The tables of the evaluation, which are drawn, too.
EVALUATION := language_model translation image_classification scaling ablation \
  sparsity convergence table_size
BENCHMARKS := overhead $(EVALUATION)

bench: setup
	@set -e; for name in $(BENCHMARKS); do \
	  $(BIN)/python -m benchmarks.$$name --quick --json build/benchmarks/$$name.json; \
	done

bench-full: setup
	@set -e; for name in $(EVALUATION) roads; do \
	  $(BIN)/python -m benchmarks.$$name --json docs/results/$$name.json \
	    --plot docs/img/$$name.png; \
	done
	@set -e; for name in overhead local_aggregation many_tables large_tables watching; do \
	  $(BIN)/python -m benchmarks.$$name --json docs/results/$$name.json; \
	done

# Two files of tests at a time, those of many processes first: they take longest.
test: lint docs
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

sanitize: setup
	$(BIN)/python -m tests.transport.sanitize

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache

# pip is the last that venv installs: without it, .venv is the rest of a set-up cut
# short, or its Python is gone.
$(BIN)/pip:
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
	  if "$$python" -c 'import sys, ensurepip, venv; \
	      sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; \
	  then \
	    echo "Creating $(VENV) with $$("$$python" -V) ($$python)"; \
	    exec "$$python" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "No Python 3.11 or 3.12 (Keras 3.15 needs one) with the module venv works; tried:" \
	  "$(or $(PYTHON),$(PYTHONS))." \
	  "Install one (on Debian or Ubuntu: apt-get install python3 python3-venv)" \
	  "or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	exit 1

# The examples' data come in wheels of libraries whose own needs nobody has here.
$(VENV)/.package: setup.py keras_parallax/versions.py examples/requirements.txt | $(BIN)/pip
	$(BIN)/python -m pip install --disable-pip-version-check --quiet \
	  --editable '.[tests,docs,examples,benchmarks]'
	$(BIN)/python -m pip install --disable-pip-version-check --quiet \
	  --no-deps --requirement examples/requirements.txt
	@touch $@

$(VENV)/.horovod: $(VENV)/.package keras_parallax/cli/build_horovod.py \
    keras_parallax/cli/horovod_source.py
	$(BIN)/python -m keras_parallax.cli.build_horovod
	@touch $@
