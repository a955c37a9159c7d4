"""Theano's own tests of its functions, run with ours instead, on one rank and on two.

The tests are those of the installed Theano; each module runs in a separate process (`child`). Those that do not pass
are listed below; the table in docs/porting.rst describes what each expects, and why ours differ.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.theano

#: Time limit for a module, even if nothing is compiled yet.
TIMEOUT_S = 400

#: The modules, and the number of their tests that pass with Theano's own functions.
MODULES = {
    "test_builders": 28,
    "test_debugmode": 21,
    "test_function": 11,
    "test_function_module": 41,
    "test_misc": 1,
    "test_modes": 2,
    "test_monitormode": 3,
    "test_nanguardmode": 1,
    "test_pfunc": 40,
    "test_profiling": 2,
    "test_shared": 9,
}

#: Linkers: Python alone, or C as in Theano's default. (The tests of test_profiling count calls of C code.)
CASES = [("py", module) for module in MODULES if module != "test_profiling"] + [("cvm", module) for module in MODULES]

#: Tests that do not pass with the library's functions, by number of ranks.
DIFFERENT = {
    1: {
        "test_function": ["TestFunctionIn::test_in_mutable"],
        "test_function_module": [
            "T_function::test_borrow_output",
            "T_function::test_copy_delete_updates",
            "T_picklefunction::test_deepcopy_trust_input",
        ],
        "test_pfunc": ["Test_pfunc::test_param_mutable"],
    },
    2: {"test_debugmode": ["Test_check_isfinite::test_check_isfinite"]},
}

#: Tests that call functions without a command: a call with too many inputs is refused before, or Theano calls the
#: functions (to compute test values).
NOT_CALLED = {"T_function::test_extra_inputs": 0, "T_OpFromGraph::test_compute_test_value": 2}


def reports_of(tmp_path, linker, module, *options):
    """Run a module; return the outcomes of its tests, by "theano" and by the number of ranks."""
    file = tmp_path / "report.json"
    # Otherwise, functions that request C code would compile for minutes.
    flags = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "gcc.cxxflags=-O0", f"linker={linker}"]))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("child.py")), module, str(file), *options],
        cwd=str(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        timeout=TIMEOUT_S,
        env=dict(os.environ, PYTHONPATH=str(ROOT), THEANO_FLAGS=flags),
    )
    assert done.returncode == 0 and file.exists(), done.stdout[-4000:]
    return json.loads(file.read_text())


def passed(report):
    """Return the tests that pass, with their calls."""
    return {name: test for name, test in report.items() if test["outcome"] == "passed"}


def around(serial, parallel):
    """Return the tests that pass, but call functions around the ranks, or none although the serial tests call some."""
    found = []
    for name, test in passed(parallel).items():
        expected = NOT_CALLED.get(name, 0)
        is_called = bool(test["through"]) or not serial[name]["around"] or name in NOT_CALLED
        if test["around"] != expected or not is_called:
            found.append(name)
    return found


@pytest.mark.thorough
@pytest.mark.long(but="py-test_function$")
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.parametrize("linker, module", CASES)
def test_module(tmp_path, linker, module):
    reports = reports_of(tmp_path, linker, module, "--ranks", "1", "2")
    serial = passed(reports["theano"])
    assert len(serial) == MODULES[module], "another Theano than 1.0.5?"
    expected = set(DIFFERENT[1].get(module, ()))
    for n in (1, 2):
        expected |= set(DIFFERENT[n].get(module, ()))
        found = {name: reports[str(n)][name]["error"] for name in set(serial) - set(passed(reports[str(n)]))}
        assert set(found) == expected, found
        assert around(reports["theano"], reports[str(n)]) == []


def test_so_many_pass():
    """The documented numbers are those of `test_module`."""
    missing = [sum(map(len, DIFFERENT[n].values())) for n in (1, 2)]
    assert (sum(MODULES.values()), missing) == (159, [5, 1])
    page = " ".join((ROOT / "docs" / "porting.rst").read_text().split())
    assert "154 of 159" in page and "153 pass on two ranks" in page
    for tests in [tests for of_modules in DIFFERENT.values() for tests in of_modules.values()]:
        for name in tests:
            assert f"``{name.split('::')[1]}``" in page


@pytest.mark.long
def test_functions_that_are_handed_back_are_found(tmp_path):
    """With the planted fault, all tests pass, but their calls are found to be around the ranks."""
    reports = reports_of(tmp_path, "py", "test_function", "--ranks", "1", "--fault")
    assert len(passed(reports["1"])) == MODULES["test_function"]
    called = [name for name, test in reports["theano"].items() if test["around"]]
    assert called and around(reports["theano"], reports["1"]) == called
