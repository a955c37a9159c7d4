"""The shapes of a function's outputs equal those of NumPy's arrays; finding them changes nothing and computes little.

Modules: `synkhronos.engines.graph.shapes`.
"""

import numpy as np
import pytest

from synkhronos import engines
from synkhronos.testing import numpy_engine


def positions(x):
    return np.flatnonzero(x > 0)


def shapes_of(engine, inputs, outputs, args, updates=(), as_inputs=()):
    """Return the output shapes that the engine's shape function computes."""
    snapshot = engine.snapshot(inputs, outputs, list(updates), None)
    compiled = engine.shapes(snapshot, list(as_inputs))
    found = engine.call(compiled, args)
    assert all(shape.dtype == np.int64 for shape in found)
    return [tuple(shape.tolist()) for shape in found]


X = np.arange(12.0).reshape(4, 3) - 5


def test_of_the_numpy_engine():
    x, w = numpy_engine.variable("x", "float64", 2), numpy_engine.shared(np.ones(3), "w")
    stream = numpy_engine.random_stream(3)
    outputs = [
        x,
        numpy_engine.mean(x),
        numpy_engine.dot(x, w),
        numpy_engine.apply(positions, x, dtype="int64", ndim=1),
        numpy_engine.uniform(stream, (2, 5)),
    ]
    before = stream.get_value().get_state()[1].tolist()
    found = shapes_of(numpy_engine.ENGINE, [x], outputs, [X], [(w, w + 1)])
    assert found == [(4, 3), (), (4,), (int((X > 0).sum()),), (2, 5)]
    assert w.get_value().tolist() == [1, 1, 1] and stream.get_value().get_state()[1].tolist() == before
    given = numpy_engine.In(x, mutable=True)
    mine = X.copy()
    assert shapes_of(numpy_engine.ENGINE, [given], [x], [mine]) == [(4, 3)] and mine.tolist() == X.tolist()
    assert shapes_of(numpy_engine.ENGINE, [x], [w * 2], [X, np.ones(7)], as_inputs=[w]) == [(7,)]


@pytest.fixture
def theano():
    pytest.importorskip("theano")
    import theano

    return theano


@pytest.mark.theano
class TestTheano:
    def test_of_many_operations(self, theano):
        T = theano.tensor
        from theano.ifelse import ifelse
        from theano.sandbox.rng_mrg import MRG_RandomStreams
        from theano.tensor.shared_randomstreams import RandomStreams

        x, w, n = T.dmatrix("x"), theano.shared(np.ones(3), "w"), T.iscalar("n")
        mrg, random = MRG_RandomStreams(5), RandomStreams(5)
        scanned, _ = theano.scan(lambda row, total: row + total, [x], [w])
        outputs = [
            x,
            x.mean(),
            T.dot(x, w),
            T.nonzero(x.flatten() > 0)[0],
            mrg.uniform((2, x.shape[0])),
            random.normal((n, 2)),
            scanned,
            T.concatenate([x, x[1:]], axis=0)[:, ::2].T,
            T.tensordot(x.dimshuffle(0, "x", 1), w, 1),
            T.set_subtensor(x[0], w),
            ifelse(T.gt(n, 0), x, x[:2]),
            T.arange(n),
        ]
        state = mrg.state_updates[0][0]
        before = state.get_value()
        engine = engines.find([x])
        found = shapes_of(engine, [x, n], outputs, [X, np.int32(3)], [(w, w + 1)])
        truth = theano.function([x, n], outputs, no_default_updates=True, mode="FAST_COMPILE")(X, 3)
        assert found == [value.shape for value in truth]
        assert w.get_value().tolist() == [1, 1, 1]
        assert np.array_equal(state.get_value(), before)

    def test_nothing_large_is_computed(self, theano):
        """Shapes are found without computing the arrays, even if these would not fit into memory."""
        T = theano.tensor
        n = T.lscalar("n")
        big = T.zeros((n, n)) + T.ones((n, n))
        found = shapes_of(engines.find([n]), [n], [T.dot(big, big), big.sum(axis=0), T.exp(big).T], [np.int64(10**9)])
        assert found == [(10**9, 10**9), (10**9,), (10**9, 10**9)]

    def test_of_deep_graphs(self, theano):
        x = theano.tensor.dvector("x")
        y = x
        for _ in range(3000):
            y = y * 2 + x
        from synkhronos.engines.graph.shapes import shapes_of

        (shape,) = shapes_of(engines.find([x]).library, [y])
        assert shape.eval({x: np.ones(7)}).tolist() == [7]

    def test_of_what_is_no_array(self, theano):
        sparse = pytest.importorskip("theano.sparse")
        if not sparse.enable_sparse:
            pytest.skip("needs scipy")
        x, s = theano.tensor.dvector("x"), sparse.csr_matrix("s")
        assert shapes_of(engines.find([x]), [x, s], [x], [np.ones(3), None]) == [(3,)]
