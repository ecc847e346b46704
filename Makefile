# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# One more than cores: many tests wait for processes that they start.
JOBS   ?= 3
TORCH  := $(shell sed -n 's/^torch==//p' constraints.txt)
# As that torch asks for it.
TRITON := 3.7.1
# Tests and benchmarks start thousands of processes: they share what is compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo browser test test-long test-phantom test-gpu check lint types imports benchmark benchmark-prediction
.PHONY: test-matrix benchmark-published benchmark-cudnn clean

help:
	@echo "make demo       run the main job on a built-in workload"
	@echo "make test       run the tests"
	@echo "make check      lint, types, import contract, then the tests"
	@echo "make test-long  the tests that take long: many ranks, whole frameworks, new examples"
	@echo "make test-phantom  the tests that need a CUDA device, on phantoms; part of make test"
	@echo "make test-gpu   the same on a real one"
	@echo "make test-matrix  one driver for many torches, on phantoms; downloads 3 GB, writes benchmarks/results/"
	@echo "make benchmark  compare with the peers; writes benchmarks/results/"
	@echo "make benchmark-prediction  hold predictions against memory that was measured; resumes where it stopped"
	@echo "make benchmark-published  hold phantoms against memory that was measured; downloads 2 GB, resumes as well"
	@echo "make benchmark-cudnn  ask cuDNN without a GPU what it chooses; downloads 700 MB"
	@echo "make clean      remove the virtual environment and caches"

# A stamp for each set of packages: installing happens once and again when its input changes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

DRIVER := $(wildcard src/brim/phantom/driver/*) src/brim/phantom/build.py hatch_build.py

$(VENV)/.installed: pyproject.toml constraints.txt $(DRIVER) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(VENV)/.installed-benchmarks: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable ".[benchmarks]"
	@touch $@

# The CUDA build of the same torch, for phantoms, and Triton, with which it compiles: their wheels alone, without NVIDIA's
# packages, in a directory of their own, first on the path only of what runs on a phantom. Three signs of equality: the
# release of the registry, and no other build of it. Beside them, libraries with kernels of their own, or that need one
# of these.
CUDA := $(VENV)/cuda
ON_CUDA := $(shell sed -nE 's/^(torch|torchvision|timm|peft|bitsandbytes)==/\1===/p' constraints.txt)

$(VENV)/.installed-cuda: constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --no-deps --upgrade --target $(CUDA) $(ON_CUDA) "triton==$(TRITON)"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/brim demo

# The tests of `brim report` look at its page in a real browser, which pip cannot install. Debian's is taken where
# there is none, else the one that Playwright brings along.
browser: $(VENV)/.installed-dev
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  apt="apt-get -o Acquire::Retries=3"; [ "$$(id -u)" = 0 ] || apt="sudo -n $$apt"; \
	  { $$apt update -qq; $$apt install -y -qq --no-install-recommends chromium; } >/dev/null \
	  || $(BIN)/playwright install chromium \
	  || { echo "The tests need a browser. Install Chromium: apt-get install chromium"; exit 1; }; }

test: $(VENV)/.installed-dev $(VENV)/.installed-cuda browser
	$(BIN)/python -m pytest -n $(JOBS) -m "not gpu and not long" $(ARGS)
	$(MAKE) --no-print-directory test-phantom

# One after the other: they measure what others would take of the same device.
GPU_TESTS = $$(grep -rl --include='test_*.py' 'mark\.gpu' tests)

test-phantom: $(VENV)/.installed-dev $(VENV)/.installed-cuda
	$(BIN)/python -m tests.on_phantom -m gpu $(or $(ARGS),$(GPU_TESTS))

test-long: $(VENV)/.installed-dev $(VENV)/.installed-cuda browser
	$(BIN)/python -m pytest -n $(JOBS) -m "long and not gpu" $(ARGS)
	$(BIN)/python -m pytest -n $(JOBS) -m "not gpu and not long" --hypothesis-profile explore $$(grep -rl --include='test_*.py' hypothesis tests/unit)

test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu $(or $(ARGS),$(GPU_TESTS))

# CUDA builds of the oldest torch that brim promises, of the newest on the registry and of some between; each wheel alone,
# with the Triton that it asks for. They share the pure Python packages of the environment.
MATRIX ?= 2.4.0 2.6.0 2.9.1 $(TORCH) newest
TORCHES := $(VENV)/matrix

define INSTALL_TORCH
	$(PIP) install --quiet --no-deps --upgrade --target $(@D) "torch$(1)"
	$(PIP) install --quiet --no-deps --target $(@D) "$$($(BIN)/python benchmarks/phantom_matrix.py triton $(@D))"
	@touch $@
endef

$(TORCHES)/%/.installed: | $(VENV)/.installed
	$(call INSTALL_TORCH,$(if $(filter newest,$*),,===$*))

test-matrix: $(foreach version,$(MATRIX),$(TORCHES)/$(version)/.installed)
	$(BIN)/python benchmarks/phantom_matrix.py run $(foreach version,$(MATRIX),$(TORCHES)/$(version))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

check: lint types imports test

benchmark: $(VENV)/.installed-dev $(VENV)/.installed-benchmarks
	$(BIN)/python benchmarks/finders.py --repeat 3
	$(BIN)/python benchmarks/guided.py
	$(BIN)/python benchmarks/accumulation.py
	$(BIN)/python benchmarks/sweeping.py
	$(BIN)/python benchmarks/batching.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/frameworks.py
	$(BIN)/python benchmarks/around_training.py

# Beside a torch without CUDA, torchvision's native operators do not load, and transformers fails once it finds it: so
# it lies in a directory of its own, on the path only of what defines those operators first (benchmarks/vision_setup.py).
VISION := $(VENV)/vision

$(VENV)/.installed-vision: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --target $(VISION) --no-deps --upgrade timm torchvision
	$(PIP) install --quiet --constraint constraints.txt "transformers>=5" pillow
	@touch $@

# The language models that were measured are those of an older transformers, which lies in a directory of its own too.
MEASURED := $(VENV)/measured

$(VENV)/.installed-measured: benchmarks/xmem-requirements.txt $(VENV)/.installed-vision
	$(PIP) install --quiet --target $(MEASURED) --no-deps --upgrade --requirement benchmarks/xmem-requirements.txt
	@touch $@

benchmark-prediction: $(VENV)/.installed-vision $(VENV)/.installed-measured
	PYTHONPATH=$(VISION) $(BIN)/python benchmarks/prediction.py cpu
	PYTHONPATH=$(MEASURED):$(VISION) $(BIN)/python benchmarks/prediction.py xmem
	PYTHONPATH=$(MEASURED):$(VISION) $(BIN)/python benchmarks/prediction.py lengths
	PYTHONPATH=$(VISION) $(BIN)/python benchmarks/prediction.py timm
	PYTHONPATH=$(VISION) $(BIN)/python benchmarks/prediction.py time --processes 1
	$(BIN)/python benchmarks/prediction.py bert
	$(BIN)/python benchmarks/prediction.py large
	$(BIN)/python benchmarks/prediction.py tokens

# The torches and libraries with which others measured. torchvision goes with torch 2.6. lit-gpt is on GitHub alone: its
# folder, .venv/published/lit-gpt, is the user's to make (benchmarks/published.py). PUBLISHED names the sets to run.
PUBLISHED ?= xmem timm qwen-sft peft
THEN      := $(VENV)/published

$(THEN)/torch-%/.installed: | $(VENV)/.installed
	$(call INSTALL_TORCH,===$(filter $*.%,2.4.1 2.6.0 2.8.0))

$(THEN)/transformers-4.50/.installed: benchmarks/xmem-requirements.txt | $(VENV)/.installed
	$(PIP) install --quiet --no-deps --upgrade --target $(@D) --requirement $<
	@touch $@

# With what it depends on: the environment's is newer than it allows. torch is none of that.
$(THEN)/transformers-5.12/.installed: constraints.txt | $(VENV)/.installed
	$(PIP) install --quiet --upgrade --target $(@D) "transformers==5.12.*"
	$(PIP) install --quiet --no-deps --upgrade --target $(@D) --constraint constraints.txt peft
	@touch $@

$(THEN)/timm/.installed: constraints.txt | $(VENV)/.installed
	$(PIP) install --quiet --no-deps --upgrade --target $(@D) "$$(grep ^timm== constraints.txt)" "torchvision===0.21.0"
	@touch $@

SITES := torch-2.4 torch-2.6 torch-2.8 transformers-4.50 transformers-5.12 timm

$(VENV)/.installed-published: $(VENV)/.installed-cuda $(SITES:%=$(THEN)/%/.installed)
	@touch $@

benchmark-published: $(VENV)/.installed-published
	$(foreach set,$(PUBLISHED),$(BIN)/python benchmarks/published.py $(set) $(if $(filter timm,$(set)),--sample 120) &&) true

# cuDNN without cuBLAS, on which it depends and which does not start without a GPU; in a directory of its own, because
# nothing else needs it.
CUDNN := $(VENV)/cudnn

$(VENV)/.installed-cudnn: | $(VENV)/bin/python
	$(PIP) install --quiet --no-deps --target $(CUDNN) nvidia-cudnn-cu12==9.10.2.21
	@touch $@

benchmark-cudnn: $(VENV)/.installed $(VENV)/.installed-cudnn
	$(BIN)/python benchmarks/cudnn_choices.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
