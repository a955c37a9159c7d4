"""Programs written in 2017 run unchanged: the program in the paper's appendix, and small ones."""

import textwrap

import pytest
from command_line import run_text

pytestmark = pytest.mark.theano


@pytest.mark.thorough
def test_the_program_of_the_paper(tmp_path):
    """The program in figures 4 and 5 runs unchanged, completed by the functions that the paper leaves out."""
    pytest.importorskip("lasagne")
    (tmp_path / "example.py").write_text(
        textwrap.dedent("""
        import lasagne
        import numpy as np
        import theano.tensor as T

        num_epochs = 2

        def build_cnn():
            lasagne.random.set_rng(np.random.RandomState(1))
            input_var = T.tensor4("inputs")
            network = lasagne.layers.InputLayer((None, 1, 4, 4), input_var)
            network = lasagne.layers.DenseLayer(network, 8, nonlinearity=lasagne.nonlinearities.tanh)
            network = lasagne.layers.DenseLayer(network, 3, nonlinearity=lasagne.nonlinearities.softmax)
            return network, input_var, lasagne.layers.get_all_params(network, trainable=True)

        def setup_training(network):
            target_var = T.ivector("targets")
            prediction = lasagne.layers.get_output(network)
            loss = lasagne.objectives.categorical_crossentropy(prediction, target_var).mean()
            params = lasagne.layers.get_all_params(network, trainable=True)
            return lasagne.updates.sgd(loss, params, learning_rate=0.5), target_var

        def load_dataset():
            random = np.random.RandomState(2)
            return random.rand(400, 1, 4, 4), random.randint(0, 3, 400).astype("int32")

        def iter_minibatch_idxs(n, size, shuffle):
            order = np.random.RandomState(3).permutation(n) if shuffle else np.arange(n)
            for start in range(0, n - size + 1, size):
                yield order[start:start + size]
        """)
    )
    serial = """
        import theano
        import numpy as np
        from example import *

        network, input_var, param_vars = build_cnn()
        updates, target_var = setup_training(network)

        train_fn = theano.function(inputs=[input_var, target_var], updates=updates)

        X_train, y_train = load_dataset()

        for epoch in range(num_epochs):
            for batch_idxs in iter_minibatch_idxs(len(X_train), size=100, shuffle=True):
                train_fn(X_train[batch_idxs], y_train[batch_idxs])

        print(" ".join("%.10f" % abs(p.get_value()).sum() for p in param_vars))
        """
    parallel = """
        import synkhronos as synk
        synk.fork()
        from example import *

        network, input_var, param_vars = build_cnn()
        updates, target_var = setup_training(network)

        train_fn = synk.function(inputs=[input_var, target_var], updates=updates)
        synk.distribute()

        X_train, y_train = load_dataset()
        X_train, y_train = (synk.data(X_train), synk.data(y_train))

        for epoch in range(num_epochs):
            for batch_idxs in iter_minibatch_idxs(len(X_train), size=100, shuffle=True):
                train_fn(X_train, y_train, batch=batch_idxs)
                synk.all_reduce(param_vars, op="avg")

        print(" ".join("%.10f" % abs(p.get_value()).sum() for p in param_vars))
        """
    truth, result = run_text(tmp_path, serial).split(), run_text(tmp_path, parallel).split()
    assert len(truth) == 4
    assert [float(value) for value in result] == pytest.approx([float(value) for value in truth], rel=1e-8)


@pytest.mark.long
def test_inputs_built_beforehand_and_the_serial_function(tmp_path):
    """Programs may import Theano first, fork at the top level, and use build_inputs, as_theano and output modes."""
    assert (
        run_text(
            tmp_path,
            """
        import sys
        import numpy as np
        import theano
        import theano.tensor as T
        import synkhronos as synk

        n = synk.fork(3, use_gpu=False)
        x = T.matrix('x')
        y = T.vector('y')
        z = T.mean(x.dot(y), axis=0)
        f_th = theano.function(inputs=[x, y], outputs=z)
        f = synk.function(inputs=[x], bcast_inputs=[y], outputs=z)
        g = synk.function([x], [(x.sum(), 'sum'), (x.max(), 'max'), (x.min(axis=0), 'min'), (x, 'gather'), x.mean()])
        synk.distribute()

        x_dat = np.random.randn(1000, 10).astype('float64')
        y_dat = np.random.randn(10)
        x_synk, y_synk = f.build_inputs(x_dat, y_dat)
        r_th = f_th(x_dat, y_dat)
        r = f(x_synk, y_synk)
        assert np.allclose(r, r_th) and np.allclose(r, f.as_theano(x_dat, y_dat))
        assert f.as_theano(x_synk, y_synk) == f_th(x_dat, y_dat)
        total, top, low, everything, mean = g(x_synk)
        assert np.allclose(total, x_dat.sum()) and top == x_dat.max() and np.array_equal(low, x_dat.min(axis=0))
        assert np.array_equal(everything, x_dat) and np.allclose(mean, x_dat.mean())
        assert g(x_synk, output_subset=[1, 0])[0] == top and len(g(x_synk)) == 5
        x_dat2 = x_synk.condition_data(x_dat[:500])
        x_synk.set_value(x_dat2)
        assert np.allclose(f(x_synk, y_synk), f_th(x_dat2, y_dat)) and len(x_synk) == 500
        x_synk.set_length(300)
        assert np.allclose(f(x_synk, y_synk), f_th(x_dat[:300], y_dat))
        print(n, g.output_modes, sys.argv[1:], __name__)
        synk.close()
        """,
            "--flag",
            mode="FAST_RUN",
        )
        == "3 ['sum', 'max', 'min', 'gather', 'avg'] ['--flag'] __main__\n"
    )


def test_every_form_of_batch(tmp_path):
    assert (
        run_text(
            tmp_path,
            """
        import theano
        import theano.tensor as T
        import numpy as np
        import synkhronos as synk

        n = synk.fork(2)
        x = T.matrix()
        y = T.ivector()
        f = synk.function([x, y], [(x, 'gather'), (T.sum(y), 'sum'), T.mean(x)])
        X = np.random.RandomState(0).rand(50, 3)
        Y = np.arange(50, dtype='int32')
        x_data, y_data = synk.data(X), synk.data(Y, var=y, name='y')
        mini = synk.data(var=y, minibatch=True, shape=(8,))
        idxs = np.random.RandomState(1).permutation(50)[:9]
        forms = [(10, slice(0, 10)), (slice(5, 30), slice(5, 30)), (slice(None, None, 7), slice(None, None, 7)),
                 (list(range(3)), [0, 1, 2]), (tuple(idxs), idxs), (idxs, idxs), (idxs.tolist(), idxs),
                 (None, slice(None))]
        for batch, rows in forms:
            for xs, ys in ((x_data, y_data), (X, Y)):
                out, total, mean = f(xs, ys, batch=batch)
                assert np.array_equal(out, X[rows]) and total == Y[rows].sum() and np.allclose(mean, X[rows].mean())
        mini[:] = Y[40:48]
        assert f(x_data, mini, batch=list(range(40, 48)))[1] == sum(range(40, 48))
        print(n)
        """,
        )
        == "2\n"
    )


def test_shared_variables(tmp_path):
    """Collectives work as the guide's demos use them, and np.asarray accepts the result of gather."""
    assert (
        run_text(
            tmp_path,
            """
        import theano
        import theano.tensor as T
        import numpy as np
        import synkhronos as synk

        n = synk.fork(2)
        s_init = np.ones(2, dtype='float32')
        s = theano.shared(s_init, 's')
        x = T.matrix('x', dtype='float32')
        f = synk.function([x], updates=[(s, T.sum(x * s, axis=0))])
        synk.distribute()
        x_dat = np.arange(8, dtype='float32').reshape(4, 2)
        f(synk.data(x_dat))
        parts = [x_dat[:2].sum(axis=0), x_dat[2:].sum(axis=0)]
        assert np.array_equal(np.asarray(synk.gather(s)), parts)
        assert np.array_equal(np.asarray(synk.gather(s, nd_up=0)), np.concatenate(parts))
        assert np.array_equal(np.asarray(synk.gather([s])[0]), parts)
        assert np.array_equal(s.get_value(), parts[0]) and np.array_equal(synk.get_value(1, s), parts[1])
        synk.all_reduce(s, op='avg')
        assert np.array_equal(synk.get_value(1, s), np.mean(parts, axis=0))
        synk.broadcast(s, np.zeros(2, 'float32'))
        assert np.array_equal(np.asarray(synk.gather(s)), np.zeros((2, 2)))
        synk.set_value(1, s, s_init)
        assert synk.reduce(s, op='sum', in_place=False).tolist() == [1, 1]
        synk.reduce([s], op='c_sum')
        assert s.get_value().tolist() == [1, 1] and synk.get_value(1, s).tolist() == [1, 1]
        synk.scatter(s, np.arange(5, dtype='float32'))
        assert synk.get_lengths(s) == [3, 2]
        synk.all_gather(s)
        assert synk.get_value(1, s).tolist() == [0, 1, 2, 3, 4]
        print(n)
        """,
        )
        == "2\n"
    )
