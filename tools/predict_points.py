"""The points by which `tools/predict_validate.py` judges predictions, and which of them the model is fitted on.

This list was committed before any of the points was measured, and is not changed afterwards: a model that misses the
bounds is improved, not the list. A point is a program with a number of ranks and of rows of a step, which all ranks
divide among them. The machine is two cores; three and four ranks share them. On several hosts there is a rank on each,
and all hosts are pretended on these two cores, so that they share them, too.

The points of ``uneven`` are a second list, committed later and before any of them was measured in earnest (they were
tried once on a busy machine, which showed nothing; nothing was changed after that). Of the first list only those of
``sequences`` have ranks that wait long for each other, up to 39 % of a step: too little to show by the bounds alone, of
which the larger is 40 %, that a model without waiting is wrong.
"""

from typing import NamedTuple


class Point(NamedTuple):
    """What is measured.

    Attributes
    ----------
    program : str
        Of `tools/predict_programs.py`.
    ranks : int
    rows : int
        Of a step, of all ranks.
    hosts : int
        1 if there is no link.
    rate : float
        Of every host's link, in bits per second; 0 without one.
    """

    program: str
    ranks: int
    rows: int
    hosts: int = 1
    rate: float = 0.0


#: What the programs are, and the rows of their steps by numbers of ranks on one host.
FITTED_ROWS = {
    "mlp": {1: (128, 512), 2: (128, 512)},
    "cnn": {1: (32, 128), 2: (32, 128)},
    "resnet20": {1: (8, 24), 2: (8, 24)},
    "lstm": {1: (64, 256), 2: (64, 256)},
    "sequences": {1: (16, 64), 2: (32, 128)},
    "uneven": {1: (16, 64), 2: (32, 128)},
}
TESTED_ROWS = {
    "mlp": {1: (256, 768), 2: (256, 768, 1024), 3: (192, 384, 768), 4: (256, 512)},
    "cnn": {1: (64,), 2: (64, 192), 3: (96, 192), 4: (64, 128)},
    "resnet20": {1: (16,), 2: (16, 32), 3: (24,), 4: (16, 32)},
    "lstm": {1: (128,), 2: (128, 384), 3: (96, 192), 4: (128, 256)},
    "sequences": {1: (32,), 2: (64, 96), 3: (48, 96), 4: (64, 128)},
    "uneven": {1: (32,), 2: (64, 96), 3: (48, 96), 4: (64, 128)},
}

#: Over links.
FITTED_HOSTS = (Point("mlp", 2, 512, 2, 1e9), Point("cnn", 2, 64, 2, 1e9))
TESTED_HOSTS = (
    Point("mlp", 2, 512, 2, 2e8),
    Point("mlp", 2, 256, 2, 4e8),
    Point("mlp", 3, 384, 3, 1e9),
    Point("mlp", 3, 768, 3, 3e8),
    Point("cnn", 2, 64, 2, 1e8),
    Point("cnn", 3, 96, 3, 2e8),
)


def on_one_host(rows):
    """Return the points of a table."""
    return tuple(
        Point(program, ranks, each) for program, table in rows.items() for ranks in table for each in table[ranks]
    )


FITTED = on_one_host(FITTED_ROWS) + FITTED_HOSTS
TESTED = on_one_host(TESTED_ROWS) + TESTED_HOSTS

#: What predictions of the tested points must keep: the median and the largest error, as part of what was measured.
MEDIAN_ERROR, LARGEST_ERROR = 0.15, 0.40
