"""Profiles of fictitious programs: times come from formulas whose coefficients are known."""

import json

import numpy as np


class Program:
    """A program with a function, an all_reduce and a step without rows; all times are in seconds.

    Parameters
    ----------
    fixed, per_row : float
        Times of the function, fixed and per row of a rank.
    contention : float
        Relative slowdown of functions by each further rank.
    nbytes : float
        Size of the gradients in bytes.
    per_byte : float
        Time for moving one byte of a rank through memory.
    overhead : float
        Time per rank that each command takes in addition.
    spread : float
        Standard deviation of the logarithm of work.
    between : float
        Time of the program's own code in a step.
    """

    def __init__(
        self,
        fixed=1e-3,
        per_row=2e-5,
        contention=0.1,
        nbytes=4e6,
        per_byte=1e-10,
        overhead=2e-5,
        spread=0.0,
        between=3e-4,
    ):
        self.fixed, self.per_row, self.contention = fixed, per_row, contention
        self.nbytes, self.per_byte, self.overhead = nbytes, per_byte, overhead
        self.spread, self.between = spread, between

    def profile(self, ranks, rows, steps=60, seed=0, noise=0.0, **changes):
        """Return the content of ``profile.json``; ``rows`` is a step's number of rows, or several numbers in turn."""
        random = np.random.RandomState(seed)
        calls = {("function", "train"): [], ("collective", "all_reduce"): [], ("function", "step"): []}
        now = 0.0
        nothing = [0.0] * ranks
        for i in range(steps):
            of_step = np.atleast_1d(rows)[i % np.size(rows)]
            contended = 1 + self.contention * (ranks - 1)
            moved = ranks * self.nbytes * self.per_byte if ranks > 1 else 0.0
            for key, work, transport, of_rank in (
                (("function", "train"), (self.fixed + of_step / ranks * self.per_row) * contended, 0.0, True),
                (("collective", "all_reduce"), 0.0, moved, False),
                (("function", "step"), self.fixed / 2 * contended, 0.0, False),
            ):
                uneven = np.exp(random.normal(0, self.spread, ranks)) * (1 + noise * random.standard_normal(ranks))
                engine = work * uneven
                master = engine.max() + transport + self.overhead * ranks
                calls[key].append(
                    {
                        "begin_s": now,
                        "master_s": master,
                        "rows": [int(of_step / ranks)] * ranks if of_rank else None,
                        "engine_s": engine.tolist(),
                        "wait_s": (engine.max() - engine).tolist(),
                        "transport_s": [transport] * ranks,
                        "copy_s": nothing,
                        "commit_s": nothing,
                        "moved": 0,
                    }
                )
                now += master + self.between / 3
        content = {
            "format": 1,
            "synkhronos": "0.1.0",
            "engine": "numpy",
            "python": "3.11.7",
            "date": "2026-11-23",
            "ranks": ranks,
            "devices": ["cpu"] * ranks,
            "hosts": [list(range(ranks))],
            "cores": [4],
            "link": "shared_memory" if ranks > 1 else None,
            "wall_s": now,
            "dropped": 0,
            "commands": [
                {
                    "kind": kind,
                    "name": name,
                    "bytes": self.nbytes if kind == "collective" else 0,
                    "arrays": 1,
                    "count": len(each),
                    "calls": each,
                }
                for (kind, name), each in calls.items()
            ],
            "rates": {"copy": 1e10},
        }
        return dict(content, **changes)


def write(folder, content):
    """Write a profile into a folder, and return the folder's name."""
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_text(json.dumps(content))
    return str(folder)
