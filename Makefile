# make install | demo | quick | test | test-all | test-long | check | prove | sabotage | bench | docs | clean
# PYTHON=python3.9 chooses the interpreter of .venv. The tiers of tests are described in docs/testing.rst.
VENV := .venv
BIN := $(VENV)/bin/python
BOOT := $(or $(PYTHON),python3)

# Two processes share the tests, file by file: most of them wait. JOBS=0 runs one test after the other. The files are taken
# by name: xdist would leave those with the fewest tests for the end, which take the longest.
JOBS ?= 2
PYTEST := $(BIN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: install demo quick test test-rest test-all test-long check prove sabotage bench docs clean

# Returns at once if nothing has changed: tools/install.py compares what it installed with what is asked for.
install:
	@command -v $(BOOT) >/dev/null || { echo "$(BOOT) was not found: install Python 3.8 to 3.11, on Debian or Ubuntu by" \
		"'apt-get install python3 python3-venv python3-dev g++'" >&2; exit 1; }
	@$(BOOT) tools/install.py $(if $(PYTHON),,--or-another)

demo: install
	@echo "make demo: trains a network on real digits with Synkhronos, then in plain Theano (a minute or two)"
	$(BIN) -m synkhronos demos/train_mnist.py

quick: install
	@echo "make quick: what needs neither Theano nor many processes (under a minute)"
	$(PYTEST) -m quick

test: install
	@echo "make test: every feature, on real processes with Theano too (up to six minutes on two cores)"
	$(PYTEST) -m "not thorough and not long"

# What test-all runs besides test.
test-rest: install
	@echo "make test-rest: more worlds, longer programs, and OpenCL devices if there are any (up to fifteen minutes on two cores)"
	$(PYTEST) -m thorough

test-all: install
	@echo "make test-all: everything but test-long (up to twenty-one minutes on two cores)"
	$(PYTEST) -m "not long"

test-long: install
	@echo "make test-long: what does not fit into the others"
	$(PYTEST) -m long

check: install
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy
	$(BIN) -m pytest --doctest-modules synkhronos tests/project/test_imports.py

# 100,000 draws of random programs: minutes. The result goes into docs/reliability.md.
prove: install
	$(BIN) tools/prove.py

# Kills, crashes, delays, interrupts, odd arguments: most of an hour; goes on from where it was interrupted. Likewise.
sabotage: install
	$(BIN) tools/sabotage.py

# Synkhronos beside MPI and others: half an hour on a quiet machine, into docs/performance.md. BENCH=--quick: minutes.
bench: install
	@echo "make bench: installing MPI, twice"
	$(BIN) -m pip install -q -e '.[theano,demos,test,docs,bench]'
	$(BIN) -m benchmarks $(BENCH)

docs: install
	$(BIN) -m sphinx -W -q -b html docs docs/_build/html
	@echo "make docs: open docs/_build/html/index.html"

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
