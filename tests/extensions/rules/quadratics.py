"""Local steps on a different quadratic on each rank, for the tests of rules: all results have closed forms.

.. math:: f_r(x) = \\tfrac12 h_r (x - c_r)^2, \\quad x_r \\leftarrow c_r + a_r (x_r - c_r), \\quad a_r = 1 - \\eta h_r
"""

import numpy as np

import synkhronos as synk


class Quadratics:
    """Parameters of several shapes, which take these steps by the library, and in NumPy.

    Attributes
    ----------
    params : list of shared variables
    c : list of (list of ndarray)
        Centers, by parameter and rank.
    a : list of float
        Factors, by rank.
    x : list of (list of ndarray)
        The values in NumPy, by parameter and rank.
    """

    def __init__(self, world, shapes=((3,),), a=None, dtype="float64", seed=0):
        random = np.random.RandomState(seed)
        self.world, self.n = world, world.n
        self.a = np.linspace(0.6, 0.9, world.n) if a is None else np.broadcast_to(a, world.n)
        self.c = [[np.asarray(random.randn(*shape), dtype) for _ in range(world.n)] for shape in shapes]
        begin = [np.asarray(random.randn(*shape), dtype) for shape in shapes]
        self.x = [[value.copy() for _ in range(world.n)] for value in begin]
        names = [f"{name}{i}" for name in "wc" for i in range(len(shapes))]
        *variables, slope = world.shareds([*begin, *begin, np.zeros((), dtype)], [*names, "a"])
        self.params, centres = variables[: len(shapes)], variables[len(shapes) :]
        for variable, of_ranks in zip([*centres, slope], [*self.c, np.asarray(self.a, dtype)]):
            world.set_values(variable, of_ranks)
        updates = [(w, c + (w - c) * slope) for w, c in zip(self.params, centres)]
        self.function = synk.function([], updates=updates, exact=False, **world_options(world))

    def step(self):
        self.function()
        self.x = [
            [c + a * (x - c) for x, c, a in zip(of_ranks, centres, self.a)] for of_ranks, centres in zip(self.x, self.c)
        ]

    def values(self):
        return [self.world.values(param) for param in self.params]

    def check(self, rtol=1e-12, atol=1e-14):
        for found, expected in zip(self.values(), self.x):
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def world_options(world):
    """Return options that make functions of the world's engine compile nothing."""
    if world.engine_name == "numpy":
        return {}
    import words

    return dict(mode=words.WORDS[world.engine_name]().mode)
