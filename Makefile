# Set-up, training, tests. `make help` lists the targets.

# For set-up: 3.11 to 3.13. Empty: python3, or the newest that will do.
PYTHON ?=
FRAMEWORK ?= torch
NP ?= 2
# 1: ranks may end and join while the others train.
ELASTIC ?=
ARGS ?=
# For compare; DATASET may be images:FOLDER.
MODEL ?= cnn
DATASET ?= mnist
EPOCHS ?= 2
# Which frameworks are installed: "torch", "keras" or both. Empty: as in the last set-up, at first both.
FRAMEWORKS ?=
# For tests: quick, or most: in one call all that CI runs.
TIER ?= quick
# For tests: a revision (1: HEAD); only tests run that depend on what differs from it.
CHANGED ?=
# For report: run folders, or folders that hold some; and the file that is written.
RUNS ?= runs/smoke
OUT ?= report.html
# For horovod-keras3: the folder of the wheel.
DIST ?= build
# A folder of wheels to install from without any network.
WHEELS ?=
# 1: set up for an NVIDIA GPU, 0: leave it unused. Empty: look. NODE: for the GPUs of that site's nodes, such as aws-g5.
GPU ?=
NODE ?=

# TensorFlow logs errors only. keras_impl/quiet_tensorflow.py drops the start-up lines that this does not silence.
export TF_CPP_MIN_LOG_LEVEL := 3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

FOR_NODE = $(if $(NODE),--node "$(if $(filter %.toml,$(NODE)),$(abspath $(NODE)),$(NODE))")
FOR_GPU = $(if $(filter 1,$(GPU)),--gpu) $(if $(filter 0,$(GPU)),--no-gpu) $(FOR_NODE)
SINCE = $(if $(CHANGED),--changed "$(CHANGED)")
SETUP = $(or $(PYTHON),python3) launch/setup.py $(if $(WHEELS),--wheels "$(WHEELS)") $(FOR_GPU)

.DEFAULT_GOAL := help
.PHONY: help setup train compare test test-ci test-all pythons test-gpu fuzz mutations equality lint types bench parity smoke report clouds results wheels lock cloud-parsers extras gpu-build horovod-keras3 clean

help: ## list the targets
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables, with their defaults:"
	@echo "  FRAMEWORK=torch|keras  NP=2  ELASTIC=1  ARGS=\"...\"  for train; ARGS for test, bench, parity too (make train ARGS=--help)"
	@echo "  MODEL=cnn  DATASET=mnist  EPOCHS=2      for compare, as NP"
	@echo "  CHANGED=REV                            for test, test-ci: only those that depend on what differs (1: HEAD)"
	@echo "  RUNS=\"runs/smoke\"  OUT=report.html      for report; DIST=build for horovod-keras3"
	@echo "  FRAMEWORKS=\"torch keras\"  WHEELS=DIR  GPU=0|1  NODE=aws-g5  PYTHON=python3.12      for set-up"

setup: ## set up .venv: packages, MPI, Horovod (the first time Horovod is compiled)
	@$(SETUP) --frameworks "$(or $(FRAMEWORKS),torch keras)"

train: ## set up if needed, then train MNIST on NP Horovod processes
	@case "$(NP)" in *[!0-9]*|''|0) echo "make train: NP is not a number of processes. Received: NP=$(NP). Give 1 or more" >&2; \
	  exit 2;; esac
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --need "$(FRAMEWORK)"
	@.venv/bin/python -m launch train --framework $(FRAMEWORK) --np $(NP) $(if $(filter 1,$(ELASTIC)),--elastic) -- $(ARGS)

compare: ## which framework trains faster here? MODEL, DATASET, NP, EPOCHS (ARGS: repeats; settings after --)
	@$(SETUP) --frameworks "torch keras"
	@.venv/bin/python -m launch compare --model "$(MODEL)" --dataset "$(DATASET)" --np "$(NP)" --epochs "$(EPOCHS)" $(ARGS)

test: ## set up if needed, then run the quick tests; TIER=most: those of test-ci, too, as CI does (ARGS go to pytest)
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python tests/run.py $(TIER) $(SINCE) $(ARGS)

test-ci: ## what CI runs after them: more ranks, Slurm, several hosts, a browser
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python tests/run.py ci $(SINCE) $(ARGS)

test-all: ## all tests, with the longer ones
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python tests/run.py all $(ARGS)

pythons: ## set up, train and test by Python 3.12 and 3.13, from empty clones (part of test-all; 8 GB of disk for a while)
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python tests/run.py all tests/test_pythons.py $(ARGS)

test-gpu: ## the tests for a machine with an NVIDIA GPU (FRAMEWORKS=torch, WHEELS=DIR as for set-up)
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@TWINS_NO_SKIP=1 .venv/bin/python tests/run.py gpu $(ARGS)

fuzz: ## set up if needed, then try damaged files on every reader, many more than the tests do, others every day
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python -m pytest -q --hypothesis-profile=fuzz --hypothesis-seed=$$(date +%Y%m%d) -o timeout=3600 \
	  tests/fuzz $(ARGS)

mutations: ## break the product line by line, see the tests find it; 40 minutes at most, resumable (ARGS: a word)
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/python tests/mutations/run.py $(ARGS)

equality: ## train by the revision before (ARGS="--since REV") and by the working tree: equal weights and records
	@$(SETUP) --frameworks "torch keras" --dev
	@.venv/bin/python tests/equality/run.py $(ARGS)

lint: ## check style and format (ruff), and form: twins, layers, lengths of pages, the table of what is proven
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/python -m pytest -q tests/form

types: ## check types (mypy)
	@$(SETUP) --frameworks "$(FRAMEWORKS)" --dev
	@.venv/bin/mypy

bench: ## set up if needed, then measure speed and scaling
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m launch bench $(ARGS)

parity: ## prove that both frameworks train alike, show table and plots (ARGS="--size toy|standard|full")
	@$(SETUP) --frameworks "torch keras"
	@.venv/bin/python -m launch parity $(ARGS)

smoke: ## every kind of experiment at toy size, both frameworks, 6 minutes on 2 cores (results in runs/smoke/)
	@$(SETUP) --frameworks "torch keras"
	@.venv/bin/python -m launch experiment run smoke $(ARGS)

report: ## one page about RUNS, in OUT (default: those of make smoke, report.html)
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m analysis report $(RUNS) -o "$(OUT)" $(ARGS)

clouds: ## CTE-POWER or AWS, from what is known without a run, on one page: clouds.html
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m analysis clouds --output clouds.html --force $(ARGS)

results: ## write the tables of results in README.md and analysis/RESULTS.md (ARGS="--add RUNS..." adds runs first)
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m analysis results $(ARGS)

wheels: ## fill WHEELS=DIR for `make setup WHEELS=DIR` on a machine without network
	@test -n "$(WHEELS)" || { echo "make wheels: name the folder: make wheels WHEELS=DIR" >&2; exit 2; }
	@$(or $(PYTHON),python3) launch/setup.py $(FOR_GPU) --frameworks "$(or $(FRAMEWORKS),torch keras)" --fill-wheels "$(WHEELS)"

lock: ## write launch/installation/lock.txt anew from pyproject.toml (ARGS="--upgrade" or "--upgrade-package NAME")
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m launch.installation.lock $(ARGS)

cloud-parsers: ## .venv.clouds: SkyPilot and ParallelCluster, whose own parsers tests ask about rendered files
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@test -x .venv.clouds/bin/python || .venv/bin/python -m venv --without-pip .venv.clouds
	@.venv/bin/python -m pip --python .venv.clouds/bin/python install --quiet --no-deps --no-compile \
	  -r tests/support/cloud-parsers.txt

extras: ## .venv.extras: MLflow, ONNX and Parquet, for tests of what is exported for them
	@$(SETUP) --frameworks "$(FRAMEWORKS)"
	@.venv/bin/python -m pip install --quiet --upgrade --target .venv.extras --no-deps --no-compile --require-hashes \
	  -r tests/support/extras.txt

gpu-build: ## build and try Horovod for GPUs in a folder of its own, then remove it (FRAMEWORK; 5 minutes, 7 GB)
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && git clone --quiet . "$$place/clone" && cd "$$place/clone" && \
	  HOROVOD_TWINS_CACHE="$$place/cache" $(or $(PYTHON),python3) launch/setup.py --gpu $(FOR_NODE) --frameworks $(FRAMEWORK) && \
	  tail -n 1 .venv/horovod-twins/setup.log && du -sh .venv

horovod-keras3: ## a wheel, in DIST (default: build), of the Keras 3 optimizer alone; it needs no set-up
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && cp LICENSE keras_impl/horovod_keras3/*.* "$$place" && \
	  $(or $(PYTHON),python3) -m pip wheel --quiet --no-deps --wheel-dir "$(DIST)" \
	  $(if $(WHEELS),--no-index --find-links "$(WHEELS)") "$$place"

clean: ## remove .venv and what tools left (runs/ and the user's cache stay)
	@rm -rf .venv .venv-torch .venv-keras .venv.clouds .venv.extras build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
