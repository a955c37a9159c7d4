"""Points for `tools/predict_validate.py`, which fits the model to some points, and tests its predictions on all others.

This list was committed before any of the points was measured. If a model misses the bounds, the model must be improved,
not the list. A point is a program, a number of ranks, and a number of rows per step, which are divided over all ranks.
The machine has two cores, so three and four ranks share cores. Points on several hosts have one rank per host; all
hosts are simulated on these two cores, so three hosts share cores, too.

The points of ``uneven`` were added in a second list, also before any of them was measured systematically. (One trial on
a busy machine was inconclusive and changed nothing.) In the first list, only the program ``sequences`` has ranks that
wait long for each other, up to 39 % of a step. With a bound of 40 % for the largest error, that is too little to reject
a model without waiting.
"""

from typing import NamedTuple


class Point(NamedTuple):
    """Point to measure: a program on a number of ranks and hosts, with a number of rows and a link rate."""

    program: str  # of `tools/predict_programs.py`
    ranks: int
    rows: int  # of a step over all ranks
    hosts: int = 1  # 1 means no link
    rate: float = 0.0  # bits per second of every host's link; 0 without a link


#: Rows per step of the points on one host, by program and number of ranks.
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

#: Points on several hosts.
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
    """Return the points of a table of rows by program and ranks."""
    return tuple(
        Point(program, ranks, each) for program, table in rows.items() for ranks in table for each in table[ranks]
    )


FITTED = on_one_host(FITTED_ROWS) + FITTED_HOSTS
TESTED = on_one_host(TESTED_ROWS) + TESTED_HOSTS

#: Bounds for the median and the largest relative error over the tested points.
MEDIAN_ERROR, LARGEST_ERROR = 0.15, 0.40
