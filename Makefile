# make install | demo | quick | test | test-hosts | test-all | test-long | check | prove | sabotage | bench | bench-hosts |
# predict-validate | docs | packages | clean
# PYTHON=python3.9 chooses the interpreter, ENGINE=theano or ENGINE=pytensor the engine, else the interpreter does: Theano on
# Python 3.8 to 3.11, PyTensor on 3.12 and later. The tiers of tests are described in docs/testing.rst.
BOOT := $(or $(PYTHON),python3)
INSTALL := $(BOOT) tools/install.py $(if $(PYTHON),,--or-another) $(if $(ENGINE),--engine $(ENGINE))
# The engine and the folder of its environment.
CHOSEN := $(shell $(INSTALL) --which 2>/dev/null)
CHOSEN_ENGINE := $(word 1,$(CHOSEN))
BIN := $(word 2,$(CHOSEN))/bin/python

# Two processes share the tests, file by file: most of them wait. JOBS=0 runs one test after the other. The files are taken
# by name: xdist would leave those with the fewest tests for the end, which take the longest.
JOBS ?= 2
PYTEST := $(BIN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: install install-test install-lint install-docs install-bench install-hosts demo quick test test-engine test-hosts test-rest test-all test-long check prove sabotage bench bench-hosts predict-validate docs packages clean

# The engine, and what the demo needs; install-test adds a dependency group of pyproject.toml. They return at once if nothing
# has changed: tools/install.py compares what it installed with what is asked for.
install install-test install-lint install-docs install-bench:
	@command -v $(BOOT) >/dev/null || { echo "$(BOOT) was not found: install Python 3.8 to 3.14, on Debian or Ubuntu by" \
		"'apt-get install python3 python3-venv python3-dev g++'" >&2; exit 1; }
	@$(INSTALL) $(patsubst install-%,--with %,$(filter install-%,$@))

# An environment for each MPI, beside the engine's and with its packages.
install-hosts: install-test
	@$(INSTALL) --with test --mpi

demo: install
	@echo "make demo: trains a network on real digits with Synkhronos, then without it (a minute or two)"
	$(BIN) -m synkhronos demos/$(if $(filter pytensor,$(CHOSEN_ENGINE)),train_mnist_pytensor.py,train_mnist.py)

quick: install-test
	@echo "make quick: what needs neither an engine nor many processes (a minute)"
	$(PYTEST) -m quick

test: install-test
	@echo "make test: every feature, on real processes with $(CHOSEN_ENGINE) too (ten minutes or more on two cores)"
	$(PYTEST) -m "not thorough and not long"

# What of make test depends on the engine, and make quick with the NumPy of its environment; QUICK= leaves that out, and TESTS=
# says which folders.
QUICK ?= or quick
test-engine: install-test
	@echo "make test-engine: what make test has for $(CHOSEN_ENGINE), and make quick (up to six minutes on two cores)"
	$(PYTEST) $(strip -m "($(CHOSEN_ENGINE) $(QUICK)) and not thorough and not long" $(TESTS))

test-hosts: install-hosts
	@echo "make test-hosts: several hosts, by Open MPI and MPICH, on pretend hosts if this is root (minutes)"
	$(PYTEST) tests/hosts

# What test-all runs besides test.
test-rest: install-hosts install-docs
	@echo "make test-rest: more worlds, longer programs, and OpenCL devices if there are any (a quarter of an hour on two cores)"
	$(PYTEST) -m thorough

test-all: install-hosts install-docs
	@echo "make test-all: everything but test-long (half an hour on two cores)"
	$(PYTEST) -m "not long"

test-long: install-test
	@echo "make test-long: what does not fit into the others"
	$(PYTEST) -m long

check: install-test
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy
	$(BIN) -m pytest --doctest-modules synkhronos tests/project/test_imports.py

# 100,000 draws of random programs and 20,000 random graphs, with both engines if their environments are there: three hours;
# goes on from where it was interrupted. The result goes into docs/reliability.md. PROVE="--draws 5000 --no-write": minutes.
prove: install-test
	$(BIN) tools/prove.py $(PROVE)

# Kills, crashes, delays, interrupts, odd arguments, lost hosts: two hours. Likewise.
sabotage: install-test
	$(BIN) tools/sabotage.py

# Synkhronos beside MPI and others: half an hour on a quiet machine, into docs/performance.md, where each engine has its
# part. BENCH=--quick: minutes.
bench: install-bench
	$(BIN) -m benchmarks $(BENCH)

# Several hosts, pretended on this machine: a quarter of an hour, as root. Likewise.
bench-hosts: install-hosts
	$(BIN) -m benchmarks.hosts $(BENCH)

# Predictions beside measurements: five minutes, more if Theano has compiled nothing yet; as root, on a quiet machine of two
# cores. Likewise; a run that was interrupted goes on. PREDICT=--fresh measures everything again.
predict-validate: install-hosts
	$(BIN) tools/predict_validate.py $(PREDICT)

docs: install-docs
	$(BIN) -m sphinx -W -q -b html docs docs/_build/html
	@echo "make docs: open docs/_build/html/index.html"

# The sdist and the wheel, each installed in a clean environment outside the clone, where README's complete program runs.
packages: install-test
	$(BIN) tools/packages.py

clean:
	rm -rf synkhronos/kernels/_kernels.*.so .venv .venv-pytensor .venv-openmpi .venv-mpich .venv-pytensor-openmpi .venv-pytensor-mpich build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
