# make install | demo | test | check | prove | sabotage | bench | docs | clean.  PYTHON=python3.9 chooses the interpreter
# of .venv.
VENV := .venv
BIN := $(VENV)/bin/python
BOOT := $(or $(PYTHON),python3)

# Modules whose every function is typed (those that exist yet).
TYPED := synkhronos

.PHONY: install demo test check prove sabotage bench docs clean

# Returns at once when nothing changed: tools/install.py compares what it installed with what is asked for.
install:
	@command -v $(BOOT) >/dev/null || { echo "$(BOOT) was not found: install Python 3.8 to 3.11, on Debian or Ubuntu by" \
		"'apt-get install python3 python3-venv python3-dev g++'" >&2; exit 1; }
	@$(BOOT) tools/install.py $(if $(PYTHON),,--or-another)

demo: install
	$(BIN) -m synkhronos demos/train_mnist.py

test: install
	$(BIN) -m pytest

check: install
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy $(TYPED)
	$(BIN) -m pytest --doctest-modules synkhronos tests/project/test_imports.py

# 100,000 draws of random programs: minutes. The result goes into docs/reliability.md.
prove: install
	$(BIN) tools/prove.py

# Kills, crashes, delays, interrupts, odd arguments: most of an hour; goes on where it was interrupted. Likewise.
sabotage: install
	$(BIN) tools/sabotage.py

# Us beside MPI, Gloo and others: half an hour on a quiet machine, into docs/performance.md. BENCH=--quick: minutes.
bench: install
	$(BIN) -m pip install -q -e '.[bench]'
	$(BIN) -m benchmarks $(BENCH)

docs: install
	$(BIN) -m sphinx -W -q -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
