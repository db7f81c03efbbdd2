# Each target makes the virtual environment itself, and installs again only when the inputs changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start hundreds of processes. Without bytecode each compiles the package again, which is a second of processor time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-net test-ranks test-slurm test-docs test-wheel docs soak random mutants lint bench bench-smallest format clean

demo: $(READY)  ## random against static neighbours, 128 nodes, three seeds, on the embedded data: about a minute
	rm -rf runs/demo
	$(BIN)/epidemic compare --out runs/demo

test: $(READY)  ## run the tests
	$(BIN)/pytest -n auto --dist loadgroup --no-loadscope-reorder --ignore tests/net --ignore tests/ranks --ignore tests/slurm --ignore tests/docs

test-net: $(READY)  ## deployed nodes: real processes, real connections, crashes, attackers
	# real processes on a busy machine: what fails beside others must pass alone
	$(BIN)/pytest -n 2 --dist loadfile tests/net || $(BIN)/pytest --last-failed tests/net

test-ranks: $(READY)  ## one simulation on several processes: the same bytes, killed ranks, refusals
	# real processes on a busy machine: what fails beside others must pass alone
	$(BIN)/pytest -n 2 --dist loadgroup tests/ranks || $(BIN)/pytest --last-failed tests/ranks

test-slurm: $(READY)  ## runs on a Slurm of this machine, which the tests start; root and Debian's slurm-wlm and munge are needed
	# tests wait for Slurm most of the time: two workers, each with a Slurm of its own
	$(BIN)/pytest -n 2 --dist worksteal tests/slurm || $(BIN)/pytest --last-failed tests/slurm

test-docs: $(READY)  ## every command and block of code of README.md, docs/ and --help, as written
	# real processes on a busy machine: what fails beside others must pass alone
	$(BIN)/pytest -n auto --dist worksteal tests/docs || $(BIN)/pytest --last-failed tests/docs

test-wheel: $(READY)  ## the wheel, in an environment that has nothing else
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/pip wheel . --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt build/wheel/*.whl
	$(PYTHON) tests/check_wheel.py build/wheel/venv/bin/epidemic
	rm -rf build/wheel

docs: $(READY)  ## the documentation as a site, in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tests/check_site.py site

soak: $(READY)  ## fresh simulated schedules of the protocols, random experiment files, and fresh examples of the laws, on all cores, for MINUTES
	$(BIN)/python tests/soak.py --everything --minutes $(or $(MINUTES),10)

random: $(READY)  ## COUNT random experiments: each runs, or is refused in one line, and none of its settings is ignored
	$(BIN)/python tests/drawn.py --count $(or $(COUNT),2000)

mutants: $(READY)  ## break the round protocol in many ways, one after the other: the tests must notice each
	$(BIN)/python tests/mutants.py

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## ratios, each measured side by side in one run
	$(BIN)/python -m benchmarks

bench-smallest: $(READY)  ## every benchmark in its smallest form, which says nothing but that it runs
	$(BIN)/python -m benchmarks --smallest

clean:  ## remove everything that was made
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/demo
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; use make PYTHON=python3.11")'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
