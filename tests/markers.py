"""Tiers of tests: which of their markers counts.

A test begins to run with `make quick`; one marked `slow`, or `theano` or `pytensor`, with `make test`, one marked `thorough`
with `make test-all`. One marked `long` runs with `make test-long` alone. If it has several, the last of these counts.

The marker is on the test, on its file (``pytestmark``), or on a value of a parameter. With a pattern it is about some
combinations of parameters only: those in whose id, the text in brackets, the pattern is found. With ``but=`` it is about
those in which that is not found::

    @pytest.mark.slow
    @pytest.mark.thorough("float64|-3$")
    @pytest.mark.long(but="threads")
"""

import re

import pytest

#: The markers of tiers, from the first to the last.
TIERS = ("quick", "slow", "thorough", "long")

#: Tests of an engine are slow: they import it, or compile.
ENGINES = ("theano", "pytensor")

#: Where `conftest` puts what `unsuitable_patterns` has returned.
UNSUITABLE = pytest.StashKey()


def is_meant(parameters, pattern="", but=None):
    """Return whether a marker with these arguments is about a test with these parameters."""
    return re.search(pattern, parameters) is not None and not (but and re.search(but, parameters))


def tier_of(parameters, markers):
    """Return the tier of a test.

    Parameters
    ----------
    parameters : str
        The text in the brackets of its id.
    markers : iterable of pytest.Mark
    """
    tiers = {"slow" for marker in markers if marker.name in ENGINES}
    tiers |= {each.name for each in markers if each.name in TIERS and is_meant(parameters, *each.args, **each.kwargs)}
    return max(tiers, key=TIERS.index, default="quick")


def parameters_of(item):
    """Return the text in the brackets of a test's id."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def settle(items, common=()):
    """Leave each test one marker of a tier, for `-m` to select by.

    Parameters
    ----------
    items : list of pytest.Item
    common : list of pytest.MarkDecorator
        Markers that all tests have.
    """
    common = [each.mark for each in common]
    tiers = [tier_of(parameters_of(item), [*item.iter_markers(), *common]) for item in items]
    for node in {node for item in items for node in item.listchain()}:
        node.own_markers = [marker for marker in node.own_markers if marker.name not in TIERS]
    for item, tier in zip(items, tiers):
        item.add_marker(tier)


def unsuitable_patterns(items):
    """Return a sentence for each pattern that is about none of the tests that have the marker, or about all of them."""
    answers = {}
    for item in items:
        for node, marker in item.iter_markers_with_node():
            if marker.name in TIERS and (marker.args or marker.kwargs):
                arguments = ", ".join(
                    [*map(repr, marker.args), *(f"{name}={it!r}" for name, it in marker.kwargs.items())]
                )
                where = f"{node.nodeid.split('[')[0]}: {marker.name}({arguments})"
                answer = is_meant(parameters_of(item), *marker.args, **marker.kwargs)
                answers.setdefault(where, set()).add(answer)
    counts = {where: "all" if True in found else "none" for where, found in answers.items() if len(found) == 1}
    return [f"{where} is about {count} of the tests" for where, count in counts.items()]
