"""Run a module of Theano's own tests in this process, with Theano's functions or with ours, and report each test.

What `function` and `pfunc` return is ours if it goes to all ranks: every call of it must be a `CallFunction` in which
every rank calls the engine. Other calls of Theano's functions, outside of any command, are counted as well.
"""

import argparse
import importlib
import json
import os

import pytest
import stand_ins

stand_ins.install()

import synkhronos as synk  # noqa: E402, before Theano: it has what Python 3.11 needs
from synkhronos import trace  # noqa: E402
from synkhronos.functions.call import CallFunction  # noqa: E402

import theano  # noqa: E402, isort: skip
from theano.compile.function_module import Function as TheanoFunction  # noqa: E402, isort: skip


class Calls(trace.Observer):
    """Counts the calls of functions by where they are made: by a command for all ranks, or around the ranks."""

    def __init__(self):
        self.commands = self.through = self.around = 0
        self._inside = []  # the commands and calls of the engine in progress
        self._call = TheanoFunction.__call__
        calls = self

        def counted(function, *args, **kwargs):
            if not calls._depth:
                if calls._inside[-2:-1] == ["command"] and calls._inside[-1] == "engine":
                    calls.through += 1
                else:
                    calls.around += 1
            calls._depth += 1
            try:
                return calls._call(function, *args, **kwargs)
            finally:
                calls._depth -= 1

        self._depth = 0  # of functions within functions: those of a scan, say
        TheanoFunction.__call__ = counted

    def begin(self, point, owner, arguments):
        if point.method == "execute":
            is_call = isinstance(arguments[0].command, CallFunction)
            self.commands += is_call
            self._inside.append("command" if is_call else "other")
        elif point.name == "engine":
            self._inside.append("engine")

    def end(self, point, owner, arguments):
        if point.method == "execute" or point.name == "engine":
            self._inside.pop()

    def take(self):
        """Return the counts, and begin again at 0."""
        counts = dict(commands=self.commands, through=self.through, around=self.around)
        self.commands = self.through = self.around = 0
        return counts


class Report:
    """A plugin of pytest that notes how every test ends, and its calls."""

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


def ours(params, outputs=None, mode=None, updates=None, output_keys=None, **kwargs):
    """Return the function that `theano.function` and `pfunc` would return, on all ranks, which have the same values."""
    if output_keys is not None:
        outputs = dict(zip(output_keys, outputs))
    if isinstance(outputs, dict):
        outputs = {key: (output, None) for key, output in outputs.items()}
    elif isinstance(outputs, (list, tuple)):
        outputs = [(output, None) for output in outputs]
    elif outputs is not None:
        outputs = (outputs, None)
    return synk.function([], outputs, bcast_inputs=params, updates=updates, mode=mode, **kwargs)


def replace(function, pfunc):
    """Put functions where tests find Theano's: in its packages, and in the modules of these names."""
    for package in (theano, theano.compile):
        package.function, package.pfunc = function, pfunc
    for name in ("function", "pfunc"):
        setattr(importlib.import_module(f"theano.compile.{name}"), name, vars(theano.compile)[name])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("report")
    parser.add_argument("--functions", choices=("theano", "synkhronos", "handed_back"), default="theano")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("-k", default="")
    given = parser.parse_args()
    calls = Calls()
    if given.functions != "theano":
        import synkhronos.engines.theano.engine  # noqa: F401, it keeps Theano's own function

        trace.observe(calls)
        synk.fork(given.ranks, use_gpu=False)
        if given.functions == "synkhronos":
            replace(lambda inputs, *args, **kwargs: ours(inputs, *args, **kwargs), ours)
        else:
            function, pfunc = theano.function, theano.compile.pfunc
            replace(lambda *args, **kwargs: function(*args, **kwargs), lambda *args, **kwargs: pfunc(*args, **kwargs))
    report = Report(calls)
    folder = os.path.join(os.path.dirname(theano.__file__), "compile", "tests")
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder]
    if given.k:
        options += ["-k", given.k]
    pytest.main([*options, os.path.join(folder, given.module + ".py")], plugins=[report])
    with open(given.report, "w") as stream:
        json.dump(report.tests, stream, indent=1)


if __name__ == "__main__":
    main()
