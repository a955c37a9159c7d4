"""What libraries of collectives have in common: the cases, and what comes out of them."""

import numpy as np


class Collective:
    """A peer with ``wait()`` and one method per collective, which takes this rank's array and the one for the result.

    Values are reduced by their maximum, so that it can be done in place again and again. The results are those of our
    collectives: `reduce` and `gather` for rank 0, all others for every rank. Where rank 0
    could be done before the others, they wait for each other at the end: our calls return when all ranks are done.
    """

    LEAVES_EARLY = ("broadcast", "scatter")

    def prepare(self, what, mine):
        """Return what to time, where its result is, and what that ends with."""
        if what == "barrier":
            return self.wait, None, None
        n, size = len(mine), self.size
        lengths = {"gather": n * size, "all_gather": n * size, "scatter": -(-n // size)}
        if what == "scatter":  # rank 0 has it all
            n = size * lengths["scatter"]
            mine = np.full(n, 1, "float32")
        result = np.ones(lengths.get(what, n), "float32")
        if len(result) == n:
            result[:] = mine  # for those who work in place
        run = getattr(self, what)

        def timed():
            run(mine, result)
            if what in self.LEAVES_EARLY:
                self.wait()

        expected = {"broadcast": 1, "scatter": 1}.get(what, size)  # the largest of 1, ..., size, or the last one's
        if what in ("reduce", "gather") and self.rank:
            return timed, None, None
        return timed, result, expected
