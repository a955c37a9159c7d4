"""Runs a module of the installed Theano's tests, with Theano's functions and with ours.

The names ``function`` and ``pfunc`` are replaced wherever the tests find them. It is a separate program, because tests
change Theano; `test_theano_suite` starts it and reads its report.
"""

import argparse
import json
import os
import sys
from functools import partial

import pytest
import stand_ins

stand_ins.install()

import synkhronos as synk  # noqa: E402, before Theano: it has what Python 3.11 needs
from synkhronos import trace  # noqa: E402
from synkhronos.calls.command import CallFunction  # noqa: E402
from synkhronos.calls.plan import CallMemory  # noqa: E402

import theano  # noqa: E402, isort: skip
from theano.compile.function_module import Function as TheanoFunction  # noqa: E402, isort: skip


class Calls(trace.TraceObserver):
    """Counts calls of Theano's functions: those made through a command for all ranks, and those around the ranks.

    The trace distinguishes them: the former are made by the engine, for a `CallFunction` whose plan has as many
    arguments as the function receives. Functions within functions (those of a scan, say) do not count.
    """

    def __init__(self):
        self.through = self.elsewhere = self._depth = 0
        self._inside = []  # commands and calls of the engine in progress; for a call, the number of its arguments
        call, calls = TheanoFunction.__call__, self

        def counted(function, *args, **kwargs):
            if not calls._depth:
                is_through = calls._inside[-2:] == [len(args), "engine"]
                calls.through, calls.elsewhere = calls.through + is_through, calls.elsewhere + (not is_through)
            calls._depth += 1
            try:
                return call(function, *args, **kwargs)
            finally:
                calls._depth -= 1

        TheanoFunction.__call__ = counted

    def begin(self, point, owner, arguments):
        if point.method == "execute":
            command = arguments[0].command
            is_call = isinstance(command, CallFunction)
            self._inside.append(
                is_call and len((command.plan or owner.kept(CallMemory).plans[command.place].plan).arguments)
            )
        elif point.name == "engine":
            self._inside.append("engine")

    def end(self, point, owner, arguments):
        if point.method == "execute" or point.name == "engine":
            self._inside.pop()

    def take(self):
        """Return the counts, and reset them to 0."""
        counts = dict(through=self.through, around=self.elsewhere)
        self.through = self.elsewhere = 0
        return counts


class Report:
    """A pytest plugin that records the outcome and the calls of every test."""

    def __init__(self, calls):
        self.calls, self.tests = calls, {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.calls.take()

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[1]
        test = self.tests.setdefault(name, {"outcome": "passed", "error": ""})
        if report.outcome != "passed":
            test["outcome"] = report.outcome
            test["error"] = str(getattr(report.longrepr, "reprcrash", "") or report.longrepr)[-1000:]
        if report.when == "call":
            test.update(self.calls.take())


def ours(which, *args, **kwargs):
    """Return the function of `theano.function` or `pfunc`, built by us; all ranks have the same values."""
    names = ("inputs" if which == "function" else "params", "outputs", "mode", "updates", "givens")
    given = dict(zip(names, args), **kwargs)
    params, outputs, output_keys = given.pop(names[0]), given.pop("outputs", None), given.pop("output_keys", None)
    if output_keys is not None:
        outputs = dict(zip(output_keys, outputs))
    if isinstance(outputs, dict):
        outputs = {key: (output, None) for key, output in outputs.items()}
    elif isinstance(outputs, (list, tuple)):
        outputs = [(output, None) for output in outputs]
    elif outputs is not None:
        outputs = (outputs, None)
    return synk.function([], outputs, bcast_inputs=params, **given)


def handed_back(plain):
    """Return a wrapper of Theano's own function, as a planted fault."""
    return lambda *args, **kwargs: plain(*args, **kwargs)


def replace(before, after):
    """Replace Theano's functions, or their earlier replacements, under every name that tests use.

    These names are in the packages and in test modules. Theano's other modules keep their imports: a scan calls its
    inner function within a call.
    """
    for name, module in list(sys.modules.items()):
        is_of_tests = ".tests." in name and name.startswith("theano.")
        if is_of_tests or name in ("theano", "theano.compile", "theano.compile.function", "theano.compile.pfunc"):
            for key, value in list(vars(module).items()):
                for old, new in zip(before, after):
                    # (theano.compile.function calls its import by the name pfunc)
                    if value is old and (name, key) != ("theano.compile.function", "pfunc"):
                        setattr(module, key, new)


def run(module, folder, options, calls):
    """Run the tests of a module; return their outcomes."""
    report = Report(calls)
    path = os.path.join(folder, module + ".py")
    pytest.main(["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, *options, path], [report])
    return report.tests


def main():
    """Run a module with Theano's functions, and then with ours on each number of ranks; write all reports."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("module")
    parser.add_argument("file")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1])
    parser.add_argument("--fault", action="store_true", help="hand Theano's functions back in the place of ours")
    given, options = parser.parse_known_args()
    calls, functions = Calls(), [theano.function, theano.compile.pfunc]
    # Before names are replaced, as this import saves Theano's functions; after `Calls`, as it saves `__call__`.
    import synkhronos.engines.theano.engine  # noqa: F401

    others = [handed_back(one) if given.fault else partial(ours, one.__name__) for one in functions]
    folder = os.path.join(os.path.dirname(theano.__file__), "compile", "tests")
    reports = {"theano": run(given.module, folder, options, calls)}
    trace.observe(calls)
    for n in given.ranks:
        synk.fork(n, use_gpu=False)
        replace(functions, others)
        functions = others
        reports[n] = run(given.module, folder, options, calls)
        synk.close()
    with open(given.file, "w") as stream:
        json.dump(reports, stream, indent=1)


if __name__ == "__main__":
    main()
