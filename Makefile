# SPDX-License-Identifier: Apache-2.0
# The commands of the README. Each sets up what it needs (tools/bootstrap.py) and then runs it; what
# a command does is the package's, not this file's.

PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?= smollm2
# Memory of the emulated device, which is this machine's: vLLM fills it with KV cache.
HBM ?= 4GiB
# Emulated devices, for ARGS="--tensor-parallel-size 2" and its like; each has HBM of memory.
DEVICES ?= 1
# Another core of compat/pins.toml than the reference: its own environment, and the engine tests.
CORE ?=
REFERENCE := $(shell sed -n 's/^reference = "\(.*\)"/\1/p' vllm_ascend_mrv2/compat/pins.toml)
OTHER_CORE := $(filter-out $(REFERENCE),$(CORE))
TESTS ?= $(if $(OTHER_CORE),,tests/unit tests/device) tests/engine
JOBS ?= 2
ARGS ?=
# Of `make contract`: versions, `newest`, `installed` or folders; none is all in compat/pins.toml.
CORES ?=

BIN := .venv$(addprefix -,$(OTHER_CORE))/bin
BOOTSTRAP := $(PYTHON) tools/bootstrap.py
RUNNABLE := $(BOOTSTRAP) run $(addprefix --core ,$(OTHER_CORE))
EMULATED := $(BIN)/vllm-ascend-mrv2 emulator run
TEST_MODELS := smollm2 minilm tiny-qwen3 tiny-qwen2 tiny-llama
# A folder with a checkpoint is served as it is; any other name is one that we make.
SERVED := $(if $(wildcard $(MODEL)/config.json),$(MODEL),build/models/$(MODEL))
MADE := $(if $(wildcard $(MODEL)/config.json),,$(MODEL))
CXX_FILES = $(shell find csrc -name '*.cpp' -o -name '*.h')

# Nothing here asks a model hub or reports usage.
export HF_HUB_OFFLINE := 1
export VLLM_NO_USAGE_STATS := 1

.PHONY: help setup serve test sanitize test-spec exactness test-parallel conformance lm-eval hazards order
.PHONY: lint format bench evidence contract docs dist dist-compile test-install clean distclean
.DEFAULT_GOAL := help

help:
	@echo 'make serve [MODEL=smollm2|tiny-qwen3|...|FOLDER] [PORT=8000] [HOST=127.0.0.1] [HBM=4GiB] [DEVICES=1] [ARGS=...]'
	@echo 'make test  [TESTS="tests/unit ..."] [JOBS=2] [ARGS=...] [CORE=0.31.0: engine tests on that vLLM]'
	@echo 'make exactness              the long tests: every model, prompt and seed'
	@echo 'make test-spec              speculative decoding: every method, random churn, counts'
	@echo 'make test-parallel [PARALLEL_SEEDS=20] [ARGS=...]  every layout over several devices'
	@echo 'make conformance [FILES="v1/worker/test_x.py ..."]  core'\''s own tests on this device'
	@echo 'make lm-eval                lm-eval scores on this device and on the CPU'
	@echo 'make sanitize               the emulator'\''s own C++ tests under ASan and TSan'
	@echo 'make hazards [SEEDS=100]    the order checker on published failures'
	@echo 'make order [ORDER_SEEDS="1 2 3"]  engine tests under adversarial scheduling, also pinned'
	@echo 'make bench [ARGS=...]      counters and times, into build/bench'
	@echo 'make evidence FOLDER=...   the runs that a protocol asks for'
	@echo 'make contract [CORES=...]  vLLM cores against the names that we rely on'
	@echo 'make docs                   these pages as HTML, into build/site; a warning is an error'
	@echo 'make dist                   sdist and wheel, into dist/, checked'
	@echo 'make test-install [ARGS="-k uv"]  installs, upgrades and removes it in environments of its own'
	@echo 'make lint | format | setup | clean | distclean'

setup:
	@$(RUNNABLE) $(TEST_MODELS)

serve:
	$(if $(strip $(MODEL)),,$(error MODEL is empty: give a name or a folder, or leave it out))
	@$(RUNNABLE) --serves $(HOST):$(PORT) $(MADE)
	@echo 'Serving $(SERVED) as "$(notdir $(MODEL))" on http://$(HOST):$(PORT)/v1 (Ctrl-C stops it).'
	@$(EMULATED) --hbm $(HBM) --devices $(DEVICES) -- vllm serve $(SERVED) --device npu --host $(HOST) --port $(PORT) \
	  --served-model-name $(notdir $(MODEL)) $(ARGS)

# One thread per worker: two workers share two cores.
RUN_PYTEST := -- python -m pytest -n $(JOBS) --dist loadgroup
PYTEST := OMP_NUM_THREADS=1 $(EMULATED) --guard $(RUN_PYTEST)
# Engines run under the order checker, with torch_npu's task queue as users have it.
PYTEST_ENGINE := $(if $(OTHER_CORE),VLLM_ASCEND_MRV2_UNVERIFIED_CORE=1) RESULTS_OF="make test CORE=$(or $(CORE),$(REFERENCE))" OMP_NUM_THREADS=1 TASK_QUEUE_ENABLE=1 $(EMULATED) --guard --check=strict $(RUN_PYTEST)
ENGINE_TESTS := $(filter tests/engine%,$(TESTS))
OTHER_TESTS := $(filter-out tests/engine%,$(TESTS))

test: MARK := not long
# What `make test` leaves out: every prompt and model, all seeds, the slow starts.
exactness: MARK := long and not spec
test exactness:
	@$(RUNNABLE) $(TEST_MODELS)
ifneq ($(OTHER_TESTS),)
	@$(PYTEST) -m "$(MARK)" --durations=20 $(OTHER_TESTS) $(ARGS)
endif
ifneq ($(ENGINE_TESTS),)
	@$(PYTEST_ENGINE) -m "$(MARK)" --durations=20 $(ENGINE_TESTS) $(ARGS)
endif

# Several devices: every layout's tokens, graphs under many schedules, starts, ends and faults.
PARALLEL_SEEDS ?= 20
PYTEST_PARALLEL = SEEDS=$(PARALLEL_SEEDS) OMP_NUM_THREADS=1 TASK_QUEUE_ENABLE=1 $(EMULATED) --guard \
  --check=strict --devices 4 -- python -m pytest --durations=20 tests/parallel
test-parallel:
	@$(BOOTSTRAP) ray
	@$(PYTEST_PARALLEL) -m "not spec" $(ARGS)

# Speculative decoding: verification's kernels, exactness of every method, random churn, counts, and
# two ranks. SPEC_TABLE=full: every method with every k, eager and with graphs, async and not.
SPEC_TESTS := tests/unit/kernels/test_spec_decode.py tests/unit/test_seq_lens.py
test-spec:
	@$(PYTHON) tools/bootstrap.py run $(TEST_MODELS)
	@$(PYTEST) $(SPEC_TESTS) $(ARGS)
	@$(PYTEST_ENGINE) -m spec --durations=20 tests/engine $(ARGS)
	@$(PYTEST_PARALLEL) -m spec $(ARGS)

# Core's own Model Runner V2 tests, against tests/upstream/expected.toml. Not under guard mode: it
# is for our code, and makes these three times as slow.
FILES ?=
conformance:
	@$(BOOTSTRAP) lm-eval $(addprefix --core ,$(OTHER_CORE))  # one of core's files imports it
	@OMP_NUM_THREADS=2 $(EMULATED) --no-guard -- python -m tests.upstream.run $(FILES) $(ARGS)

# Scores of SmolLM2 on this device and with transformers on the CPU, on tasks of our own.
lm-eval:
	@$(BOOTSTRAP) lm-eval smollm2
	@$(EMULATED) --no-guard -- python -m pytest tests/lm_eval $(ARGS)

# The order checker's proof: every published failure under many seeds, random programs against a
# reference.
SEEDS ?= 100
hazards:
	@$(RUNNABLE)
	@SEEDS=$(SEEDS) PROGRAMS=10000 $(PYTEST) tests/device/hazards $(ARGS)

# The emulator's C++ tests, over its C ABI and without torch, so that a sanitizer sees our code alone.
SANITIZERS ?= address thread
sanitize:
	@$(RUNNABLE)
	@for kind in $(SANITIZERS); do \
	  $(BIN)/cmake -S csrc/emulator -B build/sanitize/$$kind -GNinja \
	    -DCMAKE_MAKE_PROGRAM=$$PWD/$(BIN)/ninja -DEMU_SANITIZE=$$kind \
	    -DOUTPUT_DIR=$$PWD/build/sanitize/$$kind/out \
	    $$($(BIN)/python -c 'from vllm_ascend_mrv2.cli.toolkit import find_stack as f; s = f(); \
	      print(f"-DTORCH_DIR={s.torch_dir} -DTORCH_NPU_DIR={s.torch_npu_dir}")') \
	  && $(BIN)/ninja -C build/sanitize/$$kind \
	  && $(BIN)/ctest --test-dir build/sanitize/$$kind --output-on-failure -j $(JOBS) || exit 1; \
	done

# The engine tests under the order checker and an adversarial scheduler, also with pinned memory.
ORDER_SEEDS ?= 1 2 3
PINNABLE := $(addprefix tests/engine/test_,churn.py graph_exactness.py exactness.py clients.py)
order:
	@$(RUNNABLE) $(TEST_MODELS)
	@for seed in $(ORDER_SEEDS); do \
	  export ASCEND_EMU_SCHEDULE_SEED=$$seed; \
	  $(PYTEST_ENGINE) -m "not long" tests/engine $(ARGS) || exit 1; \
	  VLLM_ASCEND_MRV2_PIN_MEMORY=1 $(PYTEST_ENGINE) -m "not long" $(PINNABLE) $(ARGS) || exit 1; \
	done

bench:
	@$(RUNNABLE) $(TEST_MODELS)
	@mkdir -p build/bench
	@$(EMULATED) --no-guard -- python -m benchmarks --out build/bench $(ARGS)
	@$(EMULATED) --no-guard -- python -m pytest benchmarks/micro -q --benchmark-max-time 0.1 \
	  --benchmark-json build/bench/parts.json
	@$(EMULATED) --no-guard -- python -m benchmarks.serving --out build/bench

evidence:
	@test -n "$(FOLDER)" || { echo 'make evidence FOLDER=benchmarks/evidence/...'; exit 2; }
	@$(RUNNABLE)
	@$(EMULATED) --no-guard -- vllm-ascend-mrv2 evidence run $(FOLDER) $(ARGS)

# No torch: a core is read as text. Its source archive is downloaded into build/cores, once.
contract:
	@$(BOOTSTRAP) lint
	@$(BIN)/vllm-ascend-mrv2 contract check $(CORES) $(ARGS)

docs:
	@$(BOOTSTRAP) docs
	@$(BIN)/python tools/docs_tables.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'build/site/index.html'

dist:
	@$(BOOTSTRAP) dist
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist
	@$(BIN)/twine check --strict dist/*

# What a user's machine compiles from the sdist, in an environment of its own.
dist-compile:
	@rm -rf build/from-sdist && $(PYTHON) -m venv build/from-sdist
	@build/from-sdist/bin/python -m pip install "$$(ls dist/*.tar.gz)[emulator]"
	@build/from-sdist/bin/vllm-ascend-mrv2 install-core
	@build/from-sdist/bin/vllm-ascend-mrv2 emulator build
	@build/from-sdist/bin/vllm-ascend-mrv2 hotpath build

# Long: each test has environments of its own, from the registry. Not part of `make test`.
test-install: dist
	@$(BOOTSTRAP) lint
	@$(BIN)/python -m pytest -c tests/install/pytest.ini tests/install $(ARGS)

lint:
	@$(BOOTSTRAP) lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml

format:
	@$(BOOTSTRAP) lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks

# Also the environment. The compiled emulator is in the user's cache folder (see the README).
distclean: clean
	rm -rf .venv .venv-*
