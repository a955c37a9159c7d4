"""Linear regression, for functions that tests compare with the serial program."""

import numpy as np
from library import L, T


def rows(n, seed=0):
    random = np.random.RandomState(seed)
    return random.randn(n, 3), random.randn(n, 2)


def regression(updates, loss_of=lambda error: T.sqr(error).mean(), predict=T.dot, outputs=lambda loss: loss):
    """Return a function that builds a regression; `updates` makes its updates from loss and parameters."""

    def build():
        x, y = T.dmatrix("x"), T.dmatrix("y")
        random = np.random.RandomState(5)
        params = [L.shared(random.randn(3, 2), "w"), L.shared(np.zeros(2), "b")]
        loss = loss_of(predict(x, params[0]) + params[1] - y)
        made = updates(loss, params)
        return [*params, *(s for s in made if s not in params)], dict(
            inputs=[x, y], outputs=outputs(loss), updates=list(made.items())
        )

    return build


def descent(loss, params):
    return {param: param - 0.1 * gradient for param, gradient in zip(params, T.grad(loss, params))}


def by_signs(loss, params):
    return {param: param - 0.1 * T.sgn(gradient) for param, gradient in zip(params, T.grad(loss, params))}
