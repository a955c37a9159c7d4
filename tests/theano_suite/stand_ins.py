"""Stand-ins for the parts of nose and parameterized that Theano's tests import."""

import functools
import re
import sys
import types
import unittest


class parameterized:  # noqa: N801, the name that they import
    """Makes a test for every tuple of arguments."""

    @staticmethod
    def expand(cases, **_):
        """Return a decorator that replaces a test class's method by one method for each case."""
        cases = list(cases)

        def decorate(method):
            names = sys._getframe(1).f_locals
            for i, case in enumerate(cases):
                names[f"{method.__name__}_{i}"] = _with(method, case)

        decorate.__test__ = False  # modules import it under a name that begins with "test"
        return decorate

    @staticmethod
    def to_safe_name(text):
        """Return the text with only letters, digits and underscores."""
        return re.sub("[^a-zA-Z0-9_]+", "_", str(text))


def _with(method, case):
    @functools.wraps(method)
    def test(self):
        return method(self, *case)

    del test.__wrapped__  # otherwise, pytest would look for a fixture for each argument
    return test


def attr(*_, **__):
    """Return a decorator without effect; nose would select tests by it."""
    return lambda test: test


def install():
    """Add the stand-ins to ``sys.modules`` as the packages."""
    contents = {
        "nose": {},
        "nose.plugins": {},
        "nose.plugins.skip": {"SkipTest": unittest.SkipTest},
        "nose.plugins.attrib": {"attr": attr},
        "nose.tools": {"assert_raises": unittest.TestCase().assertRaises},
        "parameterized": {"parameterized": parameterized},
    }
    for name, attributes in contents.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)
