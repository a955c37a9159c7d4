"""Tiers of tests: the marker that determines which commands run a test.

`make quick` runs unmarked tests; `make test` adds `slow`, `theano` and `pytensor` tests; `make test-all` adds
`thorough` tests; and only `make test-long` runs `long` tests. The last of several tiers counts.

The marker is on the test, on its file (``pytestmark``), or on a parameter value. With a pattern, it applies only
to combinations of parameters whose id, the text in brackets, matches the pattern. With ``but=``, it applies only to
combinations whose id does not match::

    @pytest.mark.slow
    @pytest.mark.thorough("float64|-3$")
    @pytest.mark.long(but="threads")
"""

import re

import pytest

#: The markers of tiers, from first to last.
TIERS = ("quick", "slow", "thorough", "long")

#: Tests of an engine are slow, because they import it or compile.
ENGINES = ("theano", "pytensor")

#: Key of the result of `unsuitable_patterns`, set by `conftest`.
UNSUITABLE = pytest.StashKey()


def is_meant(parameters, pattern="", but=None):
    """Return whether a marker with these arguments applies to a test with these parameters."""
    return re.search(pattern, parameters) is not None and not (but and re.search(but, parameters))


def tier_of(parameters, markers):
    """Return the tier of a test.

    Parameters
    ----------
    parameters : str
        The text in the brackets of the test's id.
    markers : iterable of pytest.Mark
    """
    tiers = {"slow" for marker in markers if marker.name in ENGINES}
    tiers |= {each.name for each in markers if each.name in TIERS and is_meant(parameters, *each.args, **each.kwargs)}
    return max(tiers, key=TIERS.index, default="quick")


def parameters_of(item):
    """Return the text in the brackets of a test's id."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def settle(items, common=()):
    """Replace the tier markers of each test by the one that counts, for selection with `-m`.

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
    """Return a sentence for each pattern that matches none or all of the tests with its marker."""
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
