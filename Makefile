# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
# More than the cores of a small machine: many tests wait for Slurm.
JOBS   ?= 3
FRAMEWORKS = horovod tensorflow transformers mpi
BIN     = $(VENV)/bin
# The processes that the tests start share compiled modules, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =
# --second-try runs failed tests again, alone, and lists those that pass then under FLAKY (tests/second_try.py).
PYTEST  = $(BIN)/python -m pytest --second-try
# Folders that hold slow tests only; reading them imports every framework.
SLOW    = tests/frameworks tests/versions
# Random moments and bit-exact results: a failure here is never chance.
ENDS    = tests/soak/test_soak_local.py tests/soak/test_soak_faults.py
PIP     = $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-soak test-slurm-versions test-frameworks check format docs bench system clean

help:  ## show the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

# torch is named first and pinned: any other request for it may pull gigabytes of CUDA packages.
$(VENV)/torch: $(VENV)/made constraints.txt
	$(PIP) torch numpy
	@touch $@

$(VENV)/demo: $(VENV)/torch pyproject.toml
	$(PIP) --group examples --editable .
	@touch $@

$(VENV)/test: $(VENV)/demo
	$(PIP) --group test accelerate deepspeed mpich mpi4py uv
	@touch $@

$(VENV)/check: $(VENV)/made pyproject.toml
	$(PIP) --group check --editable .
	@touch $@

$(VENV)/docs: $(VENV)/made pyproject.toml
	$(PIP) --group docs --editable .
	@touch $@

demo: $(VENV)/demo  ## train for real on two processes of this machine
	$(BIN)/python examples/vit_digits.py --nprocs 2

system:  ## install Slurm, MPI, shellcheck, a browser and tmux from the distribution (as root)
	@bash scripts/system-packages

test: system $(VENV)/test  ## run all tests; what cannot run here is skipped with its reason
	$(PYTEST) -m 'not slow' -n $(JOBS) $(SLOW:%=--ignore=%) --dist worksteal $(ARGS)

test-soak: system $(VENV)/test  ## a slow leg: trainings ended in every way, hundreds of times, and what takes long
	$(BIN)/python -m pytest -m slow $(ENDS) -n 2 --dist worksteal --timeout 1800 $(ARGS)
	$(PYTEST) -m slow -n 2 tests $(SLOW:%=--ignore=%) $(ENDS:%=--ignore=%) --dist worksteal --timeout 1800 $(ARGS)

test-slurm-versions: system $(VENV)/test  ## a slow leg: Slurm 24.11 and 26.05 for real (as root)
	$(PYTEST) -m slow tests/versions --timeout 1500 $(ARGS)

test-frameworks: $(VENV)/test  ## a slow leg: Horovod, TensorFlow, DeepSpeed, MPI, containers for real
	@bash scripts/system-packages frameworks
	@for name in $(FRAMEWORKS); do echo "environment $$name"; \
	  scripts/framework-venv $$name .cache/frameworks/$$name || [ $$? = 77 ] || exit 1; done
	@echo "DeepSpeed's shared memory for CPUs"; PATH="$$PWD/$(BIN):$$PATH" DS_ACCELERATOR=cpu $(BIN)/python -c \
	  'from deepspeed.accelerator import get_accelerator as a; a().create_op_builder("ShareMemCommBuilder").load(verbose=False)'
	$(PYTEST) -m slow -n 2 tests/frameworks --dist loadfile --timeout 900 $(ARGS)

check: $(VENV)/check  ## lint, format, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/check  ## put the code into form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs  ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/test  ## measure start-up, scaling and training against others
	$(BIN)/python bench/launch.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/train.py
	$(BIN)/python bench/checkpoint.py

clean:  ## remove what make made
	rm -rf $(VENV) site build dist runs .cache
