"""Benchmark of gradients of small and large MLPs on two ranks, compared with a plain program with one thread."""

import functools

import numpy as np

import synkhronos as synk

from .at_once import CEILING, AtOnce
from .contenders import PLAIN
from .library import T, cross_entropy, function, grad, relu, shared
from .measure import Local, WrongResult, measure_in_turn

#: Layer sizes and rows of MLPs; their gradients take about 0.1, 2, 18 and 110 ms.
MLPS = (((20, 50, 10), 64), ((100, 200, 200, 10), 256), ((784, 512, 512, 10), 512), ((784, 1200, 1200, 10), 1024))


def mlp(layers, seed=0):
    """Return input, target, loss and parameters of an MLP."""
    random = np.random.RandomState(seed)
    x, y = T.fmatrix("x"), T.ivector("y")
    hidden, params = x, []
    for i, (n_in, n_out) in enumerate(zip(layers, layers[1:])):
        w = shared((random.randn(n_in, n_out) / np.sqrt(n_in)).astype("float32"), f"w{i}")
        b = shared(np.zeros(n_out, "float32"), f"b{i}")
        params += [w, b]
        hidden = T.dot(hidden, w) + b
        if i < len(layers) - 2:
            hidden = relu(hidden)
    loss = cross_entropy(hidden, y).mean()
    return x, y, loss, params


def run(groups, n=2, mlps=MLPS, repeats=60):
    """Yield a result row per network; `groups` is not used, because the peers are plain programs."""
    prepared, works = [], [{} for _ in range(n)]
    random = np.random.RandomState(1)
    for i, (layers, rows) in enumerate(mlps):
        x, y, loss, params = mlp(layers)
        outputs = [loss] + grad(loss, params)
        plain = function([x, y], outputs)
        # Gradients are not sent. The master's own gradients are returned, as an update would use them.
        ours = synk.function([x, y], [loss] + [(gradient, None) for gradient in outputs[1:]])
        images = random.rand(rows, layers[0]).astype("float32")
        labels = random.randint(0, layers[-1], rows).astype("int32")
        plain(images, labels)  # lets PyTensor compile before the fork
        prepared.append((plain, ours, images, labels))
        for rank, share in enumerate(zip(np.array_split(images, n), np.array_split(labels, n))):
            works[rank][i] = Local(functools.partial(plain, *share))
    with AtOnce(works) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            for i, (plain, ours, images, labels) in enumerate(prepared):
                data = synk.data(images), synk.data(labels)
                if not np.allclose(ours(*data)[0], plain(images, labels)[0], rtol=1e-4):
                    raise WrongResult("the loss of an MLP differs from the plain program's")
                times = measure_in_turn(
                    {
                        "synkhronos": Local(functools.partial(ours, *data)),
                        PLAIN: Local(functools.partial(plain, images, labels)),
                        CEILING: at_once.contender(i),
                    },
                    repeats,
                )
                work = times[PLAIN].median / 1e3
                yield {"case": f"MLP gradient, {work:.2g} ms of work", "n": n, "times": times}
        finally:
            synk.close()
