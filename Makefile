# Every target runs in .venv, which is made first when it is missing, broken, moved or out of date.

# The candidates, best first; or name one: make lab PYTHON=/path/to/python3.13 (.venv keeps to it).
PYTHON ?= $(or $(shell head -n 1 .venv/recipe 2>/dev/null),python3.13 python3.12 python3.14 python3 python)
VENV_PYTHON := .venv/bin/python
# What .venv is made from. A copy is laid into .venv as the last step, so a half-made one has none.
RECIPE = { echo '$(PYTHON)'; cat requirements.txt pyproject.toml; }
# Fails when the Python under .venv is gone, and when .venv came here with a copied or moved folder.
INTACT = $(VENV_PYTHON) -I -c 'import os, sys, lesson_lib; \
    sys.exit(not os.path.samefile(lesson_lib.__path__[0], "lesson_lib"))' 2>/dev/null

.PHONY: help lab test prove outputs slides bench lint counts stale

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## /make \1	/p' Makefile

lab: .venv/recipe  ## open JupyterLab on the lessons
	$(VENV_PYTHON) -m jupyterlab --allow-root notebooks/index.ipynb

test: .venv/recipe  ## run the tests that tell right from wrong
	$(VENV_PYTHON) -m pytest -m "not prove"

prove: .venv/recipe  ## run the tests that search far: every crash, every mutation, a browser
	$(VENV_PYTHON) -m pytest -m prove

outputs: .venv/recipe  ## run all notebooks and store what they print
	$(VENV_PYTHON) tools/outputs.py

slides: .venv/recipe  ## turn the lessons into slides
	$(VENV_PYTHON) tools/slides.py

bench: .venv/recipe  ## measure what durability costs
	$(VENV_PYTHON) tools/bench.py

lint: .venv/recipe  ## check style, types and layers
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	.venv/bin/lint-imports --no-cache --no-logo

counts: .venv/recipe  ## count the lines of each part and the tests of each suite
	$(VENV_PYTHON) tools/counts.py

.venv/recipe: $(shell $(RECIPE) | cmp -s - .venv/recipe && $(INTACT) || echo stale)
	@for python in $(PYTHON); do \
	    version=$$($$python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue; \
	    case $$version in 3.12.*|3.13.*|3.14.*) \
	        echo "Making .venv with $$python, which is Python $$version."; \
	        exec $$python -m venv --clear .venv;; \
	    esac; \
	    found="$$found $$python is Python $$version;"; \
	done; \
	echo "These lessons need Python 3.12, 3.13 or 3.14. Found:$${found:- no Python at all;}" \
	    "tried: $(PYTHON). Install Python 3.13 (from python.org, or with your system's package" \
	    "manager) and run the same command again. If it is installed already, name it:" \
	    "make lab PYTHON=/path/to/python3.13" >&2; \
	exit 1
	$(VENV_PYTHON) -m pip install --requirement requirements.txt
	@$(RECIPE) > $@
