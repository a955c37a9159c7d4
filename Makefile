# make install | demo | quick | test | test-hosts | test-all | test-long | check | prove | sabotage | simulate | bench | bench-hosts |
# predict-validate | docs | packages | clean
# PYTHON=python3.9 selects the interpreter, and ENGINE=theano or ENGINE=pytensor selects the engine. By default, the engine is
# Theano on Python 3.8 to 3.11, and PyTensor on Python 3.12 and later. docs/testing.rst describes the tiers of tests.
BOOT := $(or $(PYTHON),python3)
INSTALL := $(BOOT) tools/install.py $(if $(PYTHON),,--or-another) $(if $(ENGINE),--engine $(ENGINE))
# The name of the engine and the folder of its environment.
CHOSEN := $(shell $(INSTALL) --which 2>/dev/null)
CHOSEN_ENGINE := $(word 1,$(CHOSEN))
BIN := $(word 2,$(CHOSEN))/bin/python

# Two processes of pytest-xdist share the test files, because tests mostly wait. JOBS=0 runs all tests in one process. Files
# run in order of their names (tests/conftest.py).
JOBS ?= 2
PYTEST := $(BIN) -m pytest -n $(JOBS) --dist loadfile

.PHONY: install install-test install-lint install-docs install-bench install-hosts demo quick test test-engine test-hosts test-rest test-all test-long check prove sabotage simulate bench bench-hosts predict-validate docs packages clean

# The target install creates the engine's environment with the demos' dependencies. Each other target adds a dependency group
# of pyproject.toml. If nothing has changed since the last installation, the targets return quickly.
install install-test install-lint install-docs install-bench:
	@command -v $(BOOT) >/dev/null || { echo "$(BOOT) was not found: install Python 3.8 to 3.14, on Debian or Ubuntu by" \
		"'apt-get install python3 python3-venv python3-dev g++'" >&2; exit 1; }
	@$(INSTALL) $(patsubst install-%,--with %,$(filter install-%,$@))

# Also create an environment for each MPI, with the packages of the engine's environment.
install-hosts: install-test
	@$(INSTALL) --with test --mpi

demo: install
	@echo "make demo: trains a network on real digits with Synkhronos, then without it (a minute or two)"
	$(BIN) -m synkhronos demos/$(if $(filter pytensor,$(CHOSEN_ENGINE)),train_mnist_pytensor.py,train_mnist.py)

quick: install-test
	@echo "make quick: tests that need neither an engine nor many processes (a minute)"
	$(PYTEST) -m quick

test: install-test
	@echo "make test: every feature, also on real processes with $(CHOSEN_ENGINE) (ten minutes or more on two cores)"
	$(PYTEST) -m "not thorough and not long"

# Run the tests of make test that depend on the engine, and make quick with the NumPy of the engine's environment.
# QUICK= omits the latter; TESTS= selects folders.
QUICK ?= or quick
test-engine: install-test
	@echo "make test-engine: the tests of make test for $(CHOSEN_ENGINE), and make quick (up to six minutes on two cores)"
	$(PYTEST) $(strip -m "($(CHOSEN_ENGINE) $(QUICK)) and not thorough and not long" $(TESTS))

test-hosts: install-hosts
	@echo "make test-hosts: several hosts with Open MPI and MPICH, on simulated hosts if the user is root (minutes)"
	$(PYTEST) tests/hosts

# Run the tests of test-all that are not in test.
test-rest: install-hosts install-docs
	@echo "make test-rest: more worlds, longer programs, and OpenCL devices if available (a quarter of an hour on two cores)"
	$(PYTEST) -m thorough

test-all: install-hosts install-docs
	@echo "make test-all: all tests except make test-long (half an hour on two cores)"
	$(PYTEST) -m "not long"

test-long: install-test
	@echo "make test-long: tests that are too long for the other targets"
	$(PYTEST) -m long

check: install-test
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy
	$(BIN) -m pytest --doctest-modules synkhronos tests/project/test_imports.py

# Test 100,000 draws of random programs, 20,000 random graphs and 20,000 random models with the installed engines, and write
# results into docs/reliability.md. A run resumes after an interruption. PROVE="--draws 5000 --no-write" takes minutes.
prove: install-test
	$(BIN) tools/prove.py $(PROVE)

# Test kills, crashes, delays, interrupts, odd arguments and lost hosts in two hours. Like prove, it resumes and writes results.
sabotage: install-test
	$(BIN) tools/sabotage.py

# Run schedules of the simulated world, each from its seed, in about two minutes on a quiet core. SIMULATE="--schedules 100000
# --cores 2" runs a campaign, SIMULATE="--seed 7" replays a schedule, and SIMULATE=--plants plants faults of the protocol.
simulate: install-test
	$(BIN) tools/simulate.py $(SIMULATE)

# Measure Synkhronos, MPI and other peers in half an hour on a quiet machine, and write the engine's section of
# docs/performance.md. BENCH=--quick takes minutes. A run resumes after an interruption, and measures again what other programs
# disturbed; BENCH=--fresh measures everything again.
bench: install-bench
	$(BIN) -m benchmarks $(BENCH)

# Measure simulated hosts on this machine in a quarter of an hour, as root; BENCH=--quick takes minutes here, too.
bench-hosts: install-hosts
	$(BIN) -m benchmarks.hosts $(BENCH)

# Compare predictions with measurements in five minutes (longer with empty caches), as root, on a quiet two-core machine, and
# write results into docs/performance.md. A run resumes after an interruption; PREDICT=--fresh measures everything again.
predict-validate: install-hosts
	$(BIN) tools/predict_validate.py $(PREDICT)

docs: install-docs
	$(BIN) -m sphinx -W -q -b html docs docs/_build/html
	@echo "make docs: open docs/_build/html/index.html"

# Build the sdist and the wheel, and run README's complete program with each, in a clean environment outside the clone.
packages: install-test
	$(BIN) tools/packages.py

clean:
	rm -rf synkhronos/kernels/_kernels.*.so .venv .venv-pytensor .venv-openmpi .venv-mpich .venv-pytensor-openmpi .venv-pytensor-mpich build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
