# make setup       a virtual environment with everything, in .venv
# make quickstart  setup, then two small tasks on one frozen BERT
# make test        setup, then the tests, but for some long ones (CONTRIBUTING.md),
#                  in JOBS processes of 1 to 3 GB, each with programs of its own
# make benchmark   setup and mpnet, then speed, memory and start beside AdapterHub's
#                  adapters and peft
# make soak        setup, then trials for MINUTES (60): runs are killed, lose their power,
#                  find no room, damaged files, no folder (docs/reliability.md)
# make fuzz        setup, then odd inputs for MINUTES (60) to all that reads others' files
# make beam        an environment for adapter-bert beam, in .venv-beam
# make onnx        an environment for adapter-bert export --format=onnx, in .venv-onnx
# make compilers   an environment for adapter-bert compile, in .venv-compilers: 4 GB with
#                  the compilers of TPUs and of NVIDIA's GPUs, for Linux on x86-64
# make compilers-matrix
#                  steps of all methods and tasks through these compilers, into
#                  results/devices.json and results/devices.md; goes on where it was left
# make tpu-client  setup, then what tells the state of TPUs of Google Cloud, for its
#                  tests, in .venv/tpu-client
# make mpnet       setup, then a pretrained MPNet of BERT-base's size (404 MB), for
#                  adapter-bert mpnet, in .venv/mpnet
# make notebooks   setup, then what runs notebooks/ without a browser, in .venv/notebooks
# make release     setup, then the wheel and the sdist of the last commit, into dist;
#                  equal commits give equal files
# make clean       takes the virtual environments away
#
# PYTHON=python3.13 make setup chooses the interpreter; without it an existing
# .venv stays what it is. Python 3.9 to 3.11 get TensorFlow 2.15, the last with
# TPUEstimator, later ones TensorFlow 2.21; STACK=tf221 make setup chooses that
# one for Python 3.10 and 3.11 too, and STACK=newest the newest of all packages,
# without a lock. VENV=folder is another place than .venv.

VENV ?= .venv
PYTHON ?= $(shell readlink -e $(VENV)/bin/python || \
	for python in python3.11 python3.10 python3.9 python3.13 python3.12 python3; do \
		$$python -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))' \
			2> /dev/null && { echo $$python; break; }; done)
MINOR := $(shell $(PYTHON) -c 'import sys; print(sys.version_info[1])' 2> /dev/null)
# What is installed stays, unless another Python or STACK is named.
STACK ?= $(shell cat $(VENV)/stack-3.$(MINOR) 2> /dev/null || \
	echo $(if $(filter 9 10 11,$(MINOR)),tf215,tf221))
KIND := $(shell nvidia-smi -L > /dev/null 2>&1 && echo cuda || echo cpu)
# The newest of all has no lock.
LOCK := requirements/$(if $(filter newest,$(STACK)),newest.in,$(STACK)-$(KIND).txt)
# What is installed without what it asks for.
ALONE := $(wildcard requirements/$(STACK)-hub.txt)
INSTALLED := $(VENV)/installed-$(STACK)-$(KIND)-3.$(MINOR)
IN_VENV := $(VENV)/bin/python
JOBS ?= 2
MINUTES ?= 60
# Not a checkout that was made one.
IS_VENV := test -f $(VENV)/pyvenv.cfg -a ! -e $(VENV)/Makefile
# AdapterHub's adapters, for the benchmarks.
PEER := .venv-peer
# Apache Beam, which asks for older packages than the others.
BEAM := .venv-beam
# TensorFlow with what converts its graphs to ONNX, and ONNX Runtime.
ONNX := .venv-onnx
# JAX with the compilers of accelerators, and the TensorFlow that has GPUs' kernels.
COMPILERS := .venv-compilers

.PHONY: setup quickstart test benchmark peers soak fuzz beam onnx compilers tpu-client mpnet notebooks docs release lint lock clean

NEEDS_310 = @test $(MINOR) -ge 10 || { echo 'error: $(1) needs Python 3.10 to 3.13; name one: PYTHON=/path/to/python3.11 $(1)' >&2; exit 1; }

setup: $(VENV)/bin/adapter-bert

# The package and its command, of this checkout, and the small BERT.
$(VENV)/bin/adapter-bert: $(INSTALLED) pyproject.toml
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	ADAPTER_BERT_CACHE=$(VENV) $@ minilm --fetch > /dev/null || { rm -f $@; exit 1; }
	touch $@

requirements/%.txt:
	@echo 'error: no lock is called $@; expected STACK=tf215, tf221 or newest' >&2; exit 1

$(INSTALLED): $(LOCK) $(ALONE)
	@test -n "$(filter 9 10 11 12 13,$(MINOR))" || { echo 'error: Python 3.9 to 3.13 is needed, and none was found; install one, or name it: PYTHON=/path/to/python3.11 make setup' >&2; exit 1; }
	@test $(STACK) != tf215 -o $(MINOR) -le 11 || { echo 'error: TensorFlow 2.15 (STACK=tf215) needs Python 3.9, 3.10 or 3.11, found $(PYTHON)' >&2; exit 1; }
	@test $(STACK) != tf221 -o $(MINOR) -ge 10 || { echo 'error: TensorFlow 2.21 (STACK=tf221) needs Python 3.10 to 3.13, found $(PYTHON)' >&2; exit 1; }
	@test ! -e $(VENV) || $(IS_VENV) || test -d $(VENV) -a -z "$$(ls -A $(VENV))" || { echo 'error: $(VENV) is there and is no virtual environment, and it would be emptied; choose another VENV' >&2; exit 1; }
	@test ! -L $(VENV) || { echo 'error: $(VENV) is a link, and what it leads to would be emptied; delete the link, or choose another VENV' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check $(if $(filter newest,$(STACK)),,--require-hashes) -r $(LOCK)
	$(if $(ALONE),$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes $(ALONE:%=-r %))
	echo $(STACK) > $(VENV)/stack-3.$(MINOR)
	touch $@

quickstart: setup
	PYTHON=$(IN_VENV) scripts/quickstart.sh

test: setup
	$(IN_VENV) -m pytest -n $(JOBS) --dist loadfile

# An hour and a half. The machine should do nothing else meanwhile.
benchmark: setup mpnet $(PEER)/installed
	$(IN_VENV) -m lab.speed.compare --peer_python=$(PEER)/bin/python
	$(IN_VENV) -m lab.speed.start --peer_python=$(PEER)/bin/python

# The locked versions are for Python 3.11. pip has to be told where PyTorch's CPU
# builds are (docs/performance.md).
peers: $(PEER)/installed

$(PEER)/installed: lab/speed/peers/requirements.txt
	python3.11 -m venv --clear $(PEER)
	$(PEER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	touch $@

soak: setup
	$(IN_VENV) -m lab.trials --minutes=$(MINUTES) --jobs=$(JOBS)

fuzz: $(VENV)/atheris/installed
	$(IN_VENV) -m lab.trials.fuzz --minutes=$(MINUTES) --jobs=$(JOBS)

$(VENV)/atheris/installed: $(INSTALLED) requirements/atheris.txt
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target $(VENV)/atheris -r requirements/atheris.txt
	touch $@

beam: $(BEAM)/installed

$(BEAM)/installed: requirements/beam.txt
	@found=; for python in python3.11 python3.12 python3.13 python3.10; do \
		if $$python -c '' 2> /dev/null; then found=$$python; break; fi; \
	done; \
	test -n "$$found" || { echo 'error: make beam needs Python 3.10 to 3.13, and none was found' >&2; exit 1; }; \
	$$found -m venv --clear $(BEAM)
	$(BEAM)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

onnx: $(ONNX)/installed

# With this checkout's package, so that the environment's own adapter-bert works.
$(ONNX)/installed: requirements/onnx.txt pyproject.toml
	@found=; for python in python3.11 python3.12; do \
		if $$python -c '' 2> /dev/null; then found=$$python; break; fi; \
	done; \
	test -n "$$found" || { echo 'error: make onnx needs Python 3.11 or 3.12, and none was found' >&2; exit 1; }; \
	$$found -m venv --clear $(ONNX)
	$(ONNX)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	$(ONNX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

compilers: $(COMPILERS)/installed

# With this checkout's package, so that the environment's own adapter-bert works.
$(COMPILERS)/installed: requirements/compilers.txt pyproject.toml
	@found=; for python in python3.11 python3.12 python3.13; do \
		if $$python -c '' 2> /dev/null; then found=$$python; break; fi; \
	done; \
	test -n "$$found" || { echo 'error: make compilers needs Python 3.11 to 3.13, and none was found' >&2; exit 1; }; \
	$$found -m venv --clear $(COMPILERS)
	$(COMPILERS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	$(COMPILERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

# Hours, of which the BERT of two layers takes about one.
.PHONY: compilers-matrix
compilers-matrix: compilers
	$(COMPILERS)/bin/python -m lab.devices.matrix

tpu-client: $(VENV)/tpu-client/installed

# Beside the other packages: TensorFlow would load it at each start.
$(VENV)/tpu-client/installed: $(INSTALLED) requirements/tpu-client.txt
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target $(VENV)/tpu-client -r requirements/tpu-client.txt
	touch $@

mpnet: setup
	@ADAPTER_BERT_CACHE=$(VENV) $(VENV)/bin/adapter-bert mpnet --fetch

notebooks: $(VENV)/notebooks/installed

$(VENV)/notebooks/installed: $(INSTALLED) requirements/notebooks.txt
	$(call NEEDS_310,make notebooks)
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target $(VENV)/notebooks -r requirements/notebooks.txt
	touch $@

# The pages, with README as the first, and those of the Python API, into build/docs.
docs: $(VENV)/docs/installed
	rm -rf build/pages && mkdir -p build/pages
	cp -r --parents CITATION.cff *.md data docs lab/README.md notebooks results build/pages
	PYTHONPATH=$(VENV)/docs $(IN_VENV) -m mkdocs build --strict

# Beside the other packages: TensorBoard has another version of what these need.
$(VENV)/docs/installed: $(INSTALLED) requirements/docs.txt
	$(call NEEDS_310,make docs)
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target $(VENV)/docs -r requirements/docs.txt
	touch $@

# Of a copy of the last commit. An sdist would have the times of its making.
release: $(VENV)/release/installed
	rm -rf build/release dist && mkdir -p build/release/source
	git archive HEAD | tar -x -C build/release/source
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PYTHONPATH=$(abspath $(VENV)/release) && \
		$(IN_VENV) -m build --no-isolation --outdir build/release build/release/source > build/release/log && \
		cd build/release && rm -r source && tar -xzf *.tar.gz && rm *.tar.gz && \
		tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$$SOURCE_DATE_EPOCH -cf - */ | \
			gzip -n9 > $$(basename */).tar.gz && rm -r */ && \
		$(abspath $(IN_VENV)) -m twine check --strict *.whl *.tar.gz
	mkdir dist && mv build/release/*.whl build/release/*.tar.gz dist && (cd dist && sha256sum *)

$(VENV)/release/installed: $(INSTALLED) requirements/release.txt
	$(call NEEDS_310,make release)
	$(IN_VENV) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target $(VENV)/release -r requirements/release.txt
	touch $@

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

# Needs uv. No address of a package index gets into the locks.
lock:
	for lock in tf215-cpu:3.9 tf215-cuda:3.9 tf221-cpu:3.10 tf221-cuda:3.10 beam:3.10 onnx:3.11 compilers:3.11 notebooks:3.10 \
		docs:3.10 release:3.10 atheris:3.9; do \
		uv pip compile --quiet --upgrade --universal \
			--python-version $${lock#*:} --generate-hashes \
			--no-emit-index-url --no-emit-find-links --no-annotate \
			--custom-compile-command 'make lock' \
			requirements/$${lock%:*}.in \
			-o requirements/$${lock%:*}.txt || exit 1; \
	done

clean:
	@test ! -e $(VENV) || $(IS_VENV) || { echo 'error: $(VENV) is no virtual environment; delete it yourself' >&2; exit 1; }
	rm -rf $(VENV) .venv-tf221 $(PEER) $(BEAM) $(ONNX) $(COMPILERS)
