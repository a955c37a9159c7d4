"""Collectives are numbered in the order of a graph's nodes, which is the order in the program."""

import pytest

pytestmark = pytest.mark.pytensor
pt = pytest.importorskip("pytensor.tensor")

from synkhronos.engines.pytensor.traversal import io_toposort  # noqa: E402


def test_nodes_come_in_the_order_of_outputs_and_inputs():
    x = pt.dvector("x")
    a, b, c = pt.exp(x), pt.sin(x), pt.cos(x)
    joined = pt.true_div(pt.sqrt(b), a)
    found = io_toposort([], [c, joined, b])
    assert found == [each.owner for each in (c, b, joined.owner.inputs[0], a, joined)]
    assert io_toposort([], [joined, c])[-1] is c.owner


def test_what_is_computed_before_the_inputs_is_left_out():
    x = pt.dvector("x")
    y = pt.exp(x)
    z = pt.sin(y)
    assert io_toposort([y], [z, y]) == [z.owner]
