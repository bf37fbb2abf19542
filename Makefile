# Everything a developer or CI runs. Each target does all the set-up it needs.

PYTHON ?= python3
PYTHON311 ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
SQUISH := .venv-squish
MISTRALRS := .venv-mistralrs
MISTRALRS_OLD := .venv-mistralrs-old
DEMO_MODEL := .models/SmolLM2-135M-Instruct.Q4_1.gguf
DEMO_TEXT := .models/text/debian-handbook.txt
FINE_TUNE := .bench/fine-tune
LLAMA_CPP := .llama.cpp
NATIVE := $(wildcard native/*.?pp native/*/*) src/flyweight/foundation/ggml_types.py CMakeLists.txt

.PHONY: setup demo test check resolve check-native format conformance bench quality codec-quality squizd tiers pages fuzz clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.ready  ## Create the environment, build the native kernels
$(VENV)/.ready: pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable .
	touch $@

demo: setup $(DEMO_MODEL)  ## Convert a real model through every format and print one table; UPDATE=1 writes it into the README
	$(BIN)/python -m bench.quality.demo $(DEMO_MODEL) .demo $(if $(UPDATE),--record)
	$(if $(UPDATE),$(BIN)/python -m pages demo)

$(DEMO_MODEL):
	$(PYTHON) tools/fetch_model.py $@

# One thread of BLAS for each worker: sums of Gram matrices are then the same in every process, and nobody waits by spinning.
test: setup  ## Run the tests
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

check: setup resolve  ## Format, lint, types, layers, dependencies, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

resolve: setup  ## Find out whether every group of dependencies can be installed together
	$(BIN)/python tools/resolve_groups.py

SANITIZED := .venv-sanitized
SANITIZERS = $(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)
# What this machine cannot run is not instrumented for it.
AVX512_HERE := $(if $(shell grep -ow -m1 avx512f /proc/cpuinfo 2>/dev/null),ON,OFF)
check-native:  ## Run the law and native tests under the address and undefined-behaviour sanitizers
	test -x $(SANITIZED)/bin/python || $(PYTHON) -m venv $(SANITIZED)
	$(SANITIZED)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SANITIZED)/bin/python -m pip install --quiet --group dev . \
		-C cmake.define.FLYWEIGHT_SANITIZE=ON -C cmake.define.FLYWEIGHT_NATIVE=ON \
		-C cmake.define.FLYWEIGHT_AVX512=$(AVX512_HERE) -C build-dir=build/sanitized
	LD_PRELOAD="$(SANITIZERS)" ASAN_OPTIONS=detect_leaks=0 $(SANITIZED)/bin/python -m pytest tests/native tests/laws -n 2

# atheris has wheels for Python 3.11; the NumPy kernels suffice there, and the native ones have a harness of their own.
FUZZ := .venv-fuzz
$(FUZZ)/.ready: pyproject.toml
	test -x $(FUZZ)/bin/python || $(PYTHON311) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(FUZZ)/bin/python -m pip install --quiet --group fuzz --editable . -C cmake.define.FLYWEIGHT_NATIVE=OFF -C build-dir=build/fuzz
	touch $@

fuzz: setup $(FUZZ)/.ready  ## Fuzz every reader and every verb of the command line, for some minutes
	$(FUZZ)/bin/python tests/fuzz/fuzz.py all --minutes 0.12
	$(BIN)/python tests/fuzz/verbs.py --minutes 1 --jobs 2

format: setup  ## Rewrite the code in the project's style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# An environment of outside tools is named after its dependency group.
.venv-%/.ready: pyproject.toml $(NATIVE)
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --group $* --editable .
	touch $@

# mistral.rs answers in processes of its own, whose environments hold nothing else; 0.6.0 has no wheels for a newer Python.
$(MISTRALRS)/.ready $(MISTRALRS_OLD)/.ready: .venv-%/.ready: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON311) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(@D)/bin/python -m pip install --quiet --group $*
	touch $@

# llama.cpp's own tools; some minutes to build.
$(LLAMA_CPP)/llama-quantize:
	$(PYTHON) tools/build_llama_cpp.py $(LLAMA_CPP)

conformance: $(PEERS)/.ready $(LLAMA_CPP)/llama-quantize $(SQUISH)/.ready $(MISTRALRS)/.ready $(MISTRALRS_OLD)/.ready $(DEMO_MODEL)  ## Check against the tools that own the formats, both ways
	FLYWEIGHT_DEMO_MODEL=$(DEMO_MODEL) FLYWEIGHT_LLAMA_TOOLS=$(LLAMA_CPP) $(PEERS)/bin/python -m pytest tests/conformance --ignore tests/conformance/squish
	$(SQUISH)/bin/python -m pytest tests/conformance/squish

bench: $(PEERS)/.ready $(MISTRALRS)/.ready $(DEMO_MODEL) $(FINE_TUNE)/tuned  ## Measure beside the peers, in one run
	$(PEERS)/bin/python -m bench.kernels.decode
	$(PEERS)/bin/python -m bench.kernels.kquants
	$(PEERS)/bin/python -m bench.kernels.encode
	$(PEERS)/bin/python -m bench.models.convert $(DEMO_MODEL)
	$(PEERS)/bin/python -m bench.models.memory
	$(PEERS)/bin/python -m bench.kernels.palette
	$(PEERS)/bin/python -m bench.quality.palette_error $(DEMO_MODEL)
	$(PEERS)/bin/python tools/fetch_bench_weights.py .models
	$(PEERS)/bin/python -m bench.kernels.lossless
	$(PEERS)/bin/python -m bench.kernels.codecs
	$(PEERS)/bin/python -m bench.kernels.astc
	$(PEERS)/bin/python -m bench.kernels.matvec
	$(PEERS)/bin/python -m bench.kernels.sparse
	$(PEERS)/bin/python -m bench.quality.int8_agreement $(DEMO_MODEL)
	$(PEERS)/bin/python -m bench.kernels.attention
	$(PEERS)/bin/python -m bench.models.run $(DEMO_MODEL)
	$(PEERS)/bin/python -m bench.models.load
	$(PEERS)/bin/python -m bench.models.stream
	$(PEERS)/bin/python -m bench.models.deltas --fine-tune $(FINE_TUNE)
	$(PEERS)/bin/python -m bench.models.uqff $(DEMO_MODEL)
	$(PEERS)/bin/python -m bench.models.coreml
	$(PEERS)/bin/python -m pages performance deltas
	@cat docs/performance.md

# Trained once, in some minutes.
$(FINE_TUNE)/tuned: | $(PEERS)/.ready $(DEMO_MODEL) $(DEMO_TEXT)
	$(PEERS)/bin/python -m bench.models.fine_tune $(DEMO_MODEL) $(DEMO_TEXT) $(@D)

$(DEMO_TEXT):
	$(PYTHON) tools/fetch_text.py $(@D)

QWEN := .models/Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf
$(QWEN):
	$(PYTHON) tools/fetch_model.py $@

# Some hours: every row is recorded when it is there, and a run that is stopped goes on.
quality: setup $(PEERS)/.ready $(LLAMA_CPP)/llama-quantize $(DEMO_MODEL) $(QWEN) $(DEMO_TEXT)  ## Measure KL divergence at equal size, beside llama.cpp and mlx-lm, and write docs/quality*
	$(BIN)/python -m bench.quality.sizes $(DEMO_MODEL) $(dir $(DEMO_TEXT)) --llama $(LLAMA_CPP) --mlx $(PEERS)/bin/python
	$(BIN)/python -m bench.quality.sizes $(QWEN) $(dir $(DEMO_TEXT)) --llama $(LLAMA_CPP) --name Qwen2.5-Coder-1.5B --dtype bf16 \
		--windows 4 --context 512
	$(BIN)/python -m pages quality

codec-quality: setup $(DEMO_MODEL) $(DEMO_TEXT)  ## Measure bits per weight against error of every codec and write docs/codec-quality*
	$(BIN)/python -m bench.quality.weights $(DEMO_MODEL)
	$(BIN)/python -m bench.quality.model $(DEMO_MODEL) $(DEMO_TEXT) $(if $(PEERS_PYTHON),--peers $(PEERS_PYTHON))
	$(BIN)/python -m pages codec_quality

squizd: setup $(DEMO_MODEL) $(DEMO_TEXT)  ## Measure the forms of a SQUIZD file on the real model and write docs/squizd*
	$(BIN)/python -m bench.quality.squizd_forms $(DEMO_MODEL) $(DEMO_TEXT)
	$(BIN)/python -m pages squizd

tiers: $(PEERS)/.ready $(DEMO_MODEL) $(DEMO_TEXT)  ## Measure the tiers beside other ways to load a model and write docs/tiers.md
	$(PEERS)/bin/python -m bench.models.tiers $(DEMO_MODEL) $(DEMO_TEXT)
	$(PEERS)/bin/python -m pages tiers

pages: setup  ## Write every page of figures anew, from what was measured last
	$(BIN)/python -m pages

clean:  ## Remove everything built or downloaded
	rm -rf $(VENV) $(PEERS) $(SQUISH) $(MISTRALRS) $(MISTRALRS_OLD) $(SANITIZED) $(FUZZ) build dist .models .demo .bench $(LLAMA_CPP)
