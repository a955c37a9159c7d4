"""Random programs that contain the number of rows as a constant in some places, and widths of the same size in others.

However a constant is interpreted, the ranks compute the serial values, or the program is refused when it is built.
"""

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos as synk
from synkhronos.errors import ArgumentError

pytestmark = getattr(pytest.mark, NAME)

N, MOST_LAYERS = 6, 4


def layer(random, x, y, hidden):
    """Return the next layer of a network, with ``(N, N)`` values; one of its constants may be the number of rows."""
    w = L.shared(random.randn(N, N), f"w{random.randint(1000)}")
    ones = T.ones((N, 1), "float64")
    count = [N, x.shape[0]][random.randint(2)]  # either form
    kinds = [
        lambda: T.dot(hidden, w),
        lambda: T.dot(T.concatenate([hidden, ones], axis=1), L.shared(random.randn(N + 1, N), "v")),
        lambda: hidden.reshape((count, 2, 3)).sum(axis=1).dot(L.shared(random.randn(3, N), "u")),
        lambda: hidden + T.zeros((count, N), "float64"),
        lambda: hidden * T.arange(N),  # along the width
        lambda: hidden * T.arange(N).dimshuffle(0, "x"),  # along the rows
        lambda: hidden * T.eq(y.dimshuffle(0, "x"), T.arange(N)),
        lambda: hidden + hidden[T.arange(count), y].dimshuffle(0, "x"),
        lambda: T.set_subtensor(T.zeros((N, N), "float64")[:, 1:3], hidden[:, 1:3]),
        lambda: hidden.flatten()[T.arange(count) * N + y].dimshuffle(0, "x") + hidden,
        lambda: T.tanh(hidden.reshape((N * 2, 3))).reshape((count, N)),
        lambda: hidden - hidden.sum(axis=0) / N,
        lambda: hidden * T.sqr(hidden).sum() / (N * N),
        lambda: hidden + T.alloc(hidden.mean(axis=0), N, N),
        lambda: hidden * np.linspace(0, 1, N * N).reshape(N, N),
        lambda: T.dot(T.eye(N, dtype="float64"), T.dot(w.T, w)) + hidden,  # N is a number of columns
        lambda: T.switch(T.lt(T.arange(N), 2).dimshuffle(0, "x"), hidden, -hidden),
        lambda: hidden[:N] + w[:N],
        lambda: L.scan(lambda h: T.tanh(T.dot(h, w) + T.ones((N, N), "float64")), outputs_info=[hidden], n_steps=2)[0][
            -1
        ],
    ]
    return T.tanh(kinds[random.randint(len(kinds))]())


def program(seed):
    random = np.random.RandomState(seed)
    x, y = T.dmatrix("x"), T.ivector("y")
    hidden, w = x.reshape((N, N)) if random.randint(2) else x, L.shared(random.randn(N, N), "w")
    hidden = T.dot(hidden, w)
    for _ in range(1 + random.randint(MOST_LAYERS)):
        hidden = layer(random, x, y, hidden)
    loss = [T.sqr(hidden).sum() / N, T.sqr(hidden).mean(), T.log(1 + T.sqr(hidden).sum() / N)][random.randint(3)]
    updates = [(w, w - 0.1 * T.grad(loss, w))]
    return w, dict(inputs=[x, y], outputs=[loss, hidden], updates=updates, on_unused_input="ignore")


@pytest.mark.parametrize("n", [2, 3])
def test_random_programs(make_world, n):
    make_world("threads", n, 0, engine=NAME)
    built = 0
    for seed in [*range(10 * n, 10 * n + 10), 108]:  # (the last one has a loop whose gradient asserts shapes)
        (w, ours), (same, plain) = program(seed), program(seed)
        data = np.random.RandomState(seed)
        x, y = data.randn(N, N), data.randint(0, N, N).astype("int32")
        try:
            f = synk.function(**ours, exact=True, rows=N, mode=L.quick)
        except ArgumentError:
            continue  # some values would need different rows: `w[:N]` has all rows, for example
        built += 1
        want = L.function(**plain, mode=L.quick)(x, y)
        for got, value in zip(f(x, y), want):
            np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-11, err_msg=f"seed {seed}")
        for value in synk.gather(w, nd_up=1):
            np.testing.assert_allclose(value, same.get_value(), rtol=1e-9, atol=1e-11, err_msg=f"seed {seed}")
    assert built >= 6
