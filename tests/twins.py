"""Pairs of equal programs, to compare functions with the serial program."""

import numpy as np
from library import L

import synkhronos as synk


class Twins:
    """One program twice: on the ranks, and in the plain library with separate shared variables."""

    def __init__(self, build, **options):
        (self.params, ours), (self.others, plain) = build(), build()
        self.f = synk.function(**ours, **options)
        self.g = L.function(**plain, **{k: v for k, v in options.items() if k == "mode"})

    def call(self, *args, **options):
        """Call both; compare their results, and the variables of both on all ranks."""
        got, want = self.f(*args, **options), self.g(*args)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
        self.compare()

    def compare(self):
        for ours, other in zip(self.params, self.others):
            for value in np.atleast_1d(synk.gather(ours, nd_up=1)):
                np.testing.assert_allclose(value, other.get_value(), rtol=1e-10, atol=1e-12)
