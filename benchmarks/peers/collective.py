"""Base class of the collective libraries, with the cases and their expected results."""

import numpy as np


class Collective:
    """A peer with ``wait()`` and one method per collective, which accepts this rank's array and the result array.

    Reductions compute the maximum, so that in-place reductions can be repeated. As in our collectives, results are on
    rank 0 for `reduce` and `gather`, and on every rank for all other collectives. If rank 0 could finish before the
    other ranks, all ranks wait for each other at the end, because our calls return only when all ranks have finished.
    """

    LEAVES_EARLY = ("broadcast", "scatter")

    def prepare(self, what, mine):
        """Return the function to time, the array of its result, and the expected last element."""
        if what == "barrier":
            return self.wait, None, None
        n, size = len(mine), self.size
        lengths = {"gather": n * size, "all_gather": n * size, "scatter": -(-n // size)}
        if what == "scatter":  # rank 0 has the whole array
            n = size * lengths["scatter"]
            mine = np.full(n, 1, "float32")
        result = np.ones(lengths.get(what, n), "float32")
        if len(result) == n:
            result[:] = mine  # for libraries that work in place
        run = getattr(self, what)

        def timed():
            run(mine, result)
            if what in self.LEAVES_EARLY:
                self.wait()

        # Rank 0's value; or the maximum of 1, ..., size; or the last rank's value.
        expected = {"broadcast": 1, "scatter": 1}.get(what, size)
        if what in ("reduce", "gather") and self.rank:
            return timed, None, None
        return timed, result, expected
