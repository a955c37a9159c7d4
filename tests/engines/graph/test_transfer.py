"""Compiled functions that are sent to another process: modes, profiles, operations of ``__main__``, large graphs.

Modules: `slim_pickles`.
"""

import sys

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import reports

pytestmark = getattr(pytest.mark, NAME)
ENGINE = L.engine
FAST = L.Mode("py", "fast_run")


@pytest.fixture
def master(request):
    return request.getfixturevalue(f"{NAME}_master")


def compile(inputs, outputs, updates=(), mode=FAST, **kwargs):
    return ENGINE.compile(inputs, outputs, list(updates), None, mode=mode, **kwargs)


def test_outer_products_travel(master):
    """Outer products can be sent, although SciPy's routine in the tag of Theano's node cannot be pickled."""
    x, y, w = T.vector("x"), T.vector("y"), L.shared(np.zeros((2, 3)), "w")
    mode = L.module.compile.get_mode("FAST_RUN") if IS_THEANO else FAST
    f = compile([x, y], w.sum(), [(w, w + T.outer(x, y))], mode=mode)
    if IS_THEANO:
        assert any(type(node.op).__name__ == "ScipyGer" for node in f.maker.fgraph.apply_nodes)
    master.both(f, [np.ones(2), np.arange(3.0)])


def test_profiles_travel(master):
    x = T.vector("x")
    f = compile([x], T.tanh(x), profile=True, mode=L.Mode("vm", "fast_run"))
    f.profile.atexit_print = False
    if IS_THEANO:
        L.module.compile.profiling._atexit_print_list.remove(f.profile)
    ENGINE.call(f, [np.ones(2)])
    master.both(f, [np.ones(2)])


def test_debug_mode_travels(master):
    x, w = T.vector("x"), L.shared(np.ones(2), "w")
    mode = L.DebugMode(check_c_code=False, stability_patience=1)
    master.both(compile([x], x * w, [(w, w + x)], mode=mode), [np.ones(2)], times=2)


@pytest.mark.parametrize("checks", [True, False])
def test_debug_mode_checks_there_what_it_was_told_to(master, checks):
    x, w = T.vector("x"), L.shared(np.ones(2), "w")
    mode = L.DebugMode(check_c_code=False, check_isfinite=checks, stability_patience=3, optimizer=None)
    number = master.send(compile([x], T.log(x) * w, mode=mode))
    assert master.peer.evaluate("mode_of", number, "stability_patience") == 3
    assert master.peer.evaluate("mode_of", number, "check_isfinite") is checks
    if checks and not IS_THEANO:
        return  # PyTensor does not check what this operation computes
    if checks:
        with reports(RuntimeError, "InvalidValueError"):
            master.peer.call(number, [np.zeros(2)])
    else:
        np.testing.assert_array_equal(master.peer.call(number, [np.zeros(2)]), [[-np.inf] * 2])


def test_nan_guard_mode_travels_and_still_guards(master):
    x = T.vector("x")
    number = master.both(compile([x], T.log(x), mode=L.NanGuardMode(True, True, True)), [np.ones(2)], times=1)
    with reports(RuntimeError, "NaN detected"):
        master.peer.call(number, [-np.ones(2)])


#: A cell of a notebook, with operations made from a function and from a class.
MAIN = """
factor = 4
@as_op([T.dvector], [T.dvector], infer_shape=lambda *arguments: arguments[-1])
def by_function(x):
    return x * factor
class Quadruple(Op):
    __props__ = ()
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] * factor
by_class = Quadruple()
"""


@pytest.mark.parametrize("name", ["by_function", "by_class"])
def test_operations_of_main_travel_by_value(master, name):
    """Operations defined in ``__main__``, as in a script or a notebook cell, are sent by value."""
    cell = {"__name__": "__main__", "T": T, "as_op": L.as_op, "Op": L.Op, "Apply": L.Apply}
    exec(MAIN, cell)
    x = T.dvector("x")
    number = master.both(compile([x], [cell[name](x) + 1, cell[name](x).shape[0]]), [np.ones(2)])
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2)])[0], [5, 5])


@pytest.mark.thorough
def test_thousands_of_operations(master):
    x, w = T.matrix("x"), L.shared(np.array([[0.1, 0.2], [0.3, -0.4]]), "w")
    y, limit = x, sys.getrecursionlimit()
    sys.setrecursionlimit(50000)  # the library's own compilation needs this limit
    try:
        for _ in range(3000):
            y = T.tanh(T.dot(y, w))
        f = compile([x], y, mode=L.Mode("vm", None))
    finally:
        sys.setrecursionlimit(limit)
    master.both(f, [np.ones((2, 2))], times=1)
    assert sys.getrecursionlimit() == limit


def test_many_updated_variables(master):
    ws = [L.shared(np.full(2, float(i)), f"w{i}") for i in range(200)]
    x = T.vector("x")
    master.both(compile([x], [], [(w, w * 2 + x) for w in ws], mode=L.slow), [np.ones(2)], times=1)


def test_arrays_are_not_sent_with_the_function(master):
    w, x = L.shared(np.zeros(10**6), "w"), T.vector("x")
    f = compile([x], x + w, [(w, w * 2)])
    master.add(w)
    assert len(ENGINE.dumps([f], master.numbers, master.variables, {})) < 10**5


def test_only_the_optimized_graph_is_sent(master):
    """Ranks receive no expression as the program wrote it, only its type."""
    x, w = T.vector("x"), L.shared(np.ones(2), "w")
    f = compile([x], [x * 1 + w, x], [(w, w * 1 + x)])  # the optimized graph contains no product
    number = master.both(f, [np.arange(2.0)], times=2)
    expressions = [given.update for given in f.maker.inputs] + [given.variable for given in f.maker.outputs]
    assert any(each is not None and each.owner is not None for each in expressions)  # those of the master
    assert master.peer.evaluate("written_expressions", number) == []
    assert master.peer.evaluate("types_of_outputs", number) == [str(given.variable.type) for given in f.maker.outputs]


def test_equal_stacks_are_sent_once(master):
    """Nodes have the stacks that created them, for messages about errors; nodes with equal stacks share one object."""
    y = T.vector("x")
    x, z = y, y
    for _ in range(20):
        y = T.tanh(y)
    for _ in range(20):
        z = T.sin(z)
    number = master.both(compile([x], [y, z], mode=L.Mode("vm", None)), [np.ones(2)], times=1)
    assert master.peer.evaluate("stacks_of_nodes", number) == (40, 2, 2)


def test_what_only_rewriting_needs_is_not_sent(master):
    """Known shapes and merged nodes refer to replaced nodes, which would take most of a large function's memory."""
    x, w = T.vector("x"), L.shared(np.ones(3), "w")
    f = compile([x], (x * 1 + w[1:]).sum(), [(w, w * 2)])
    number = master.both(f, [np.arange(2.0)], times=2)
    features = {type(each).__name__ for each in f.maker.fgraph._features}
    assert {"ShapeFeature", "MergeFeature", "DestroyHandler"} <= features
    assert set(master.peer.evaluate("features_of_graph", number)) == features - {"ShapeFeature", "MergeFeature"}
    assert any(hasattr(node.tag, "imported_by") for node in f.maker.fgraph.apply_nodes)
    assert not master.peer.evaluate("has_history", number)


def test_equal_operations_are_sent_once(master):
    """Operations of different nodes are one object on ranks if they are equal and print alike."""
    xs, add = [T.matrix(f"x{i}") for i in range(4)], L.module.scalar.add
    outputs = [each for x in xs for each in (x.sum(axis=0), x[1:], x.dimshuffle("x", 0, 1))]
    outputs += [L.Elemwise(add, name=name)(x, x) for x, name in zip(xs, ["first", "first", "second", "second"])]
    f = compile(xs, outputs, mode=L.Mode("vm", None))
    nodes = f.maker.fgraph.toposort()
    assert len({id(node.op) for node in nodes}) > 8 or L.merges_operations
    number = master.both(f, [np.ones((2, 2)) * i for i in range(4)], times=1)
    n_objects, printed = master.peer.evaluate("operations", number)
    assert (n_objects, printed) == (len(set(printed)), [str(node.op) for node in nodes])


#: A program's scalar operation; Theano considers all its instances equal.
SCALED = """
class Scaled(scalar.UnaryScalarOp):
    def __init__(self, factor):
        super().__init__(scalar.same_out, name="scaled")
        self.factor = factor
    def impl(self, x):
        return x * self.factor
"""


def test_operations_of_a_program_are_never_taken_for_each_other(master):
    cell = {"__name__": "__main__", "scalar": L.module.scalar.basic}
    exec(SCALED, cell)
    x, y = T.vector("x"), T.vector("y")
    double, triple = (L.Elemwise(cell["Scaled"](factor)) for factor in (2, 3))
    f = compile([x, y], [double(x), triple(y)], mode=L.Mode("py", None))
    expected = [[2, 2], [2, 2] if L.merges_operations else [3, 3]]
    assert np.array_equal(f(np.ones(2), np.ones(2)), expected)
    number = master.send(f)
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2), np.ones(2)]), expected)
