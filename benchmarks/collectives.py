"""Benchmark of collectives on shared variables, compared with MPI and Gloo on plain arrays, and with a memory copy."""

import numpy as np

import synkhronos as synk

from .library import shared
from .measure import Local, measure_in_turn, repeats_for
from .peers.group import COLLECTIVES

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 100 << 20, 400 << 20)


def resnet50_shapes():
    """Return the shapes of ResNet-50's 161 parameters, with 25.6 million numbers in total."""
    shapes, before = [(64, 3, 7, 7), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, before, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, shape[:1], shape[:1]]
            if block == 0:
                shapes += [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
            before = 4 * width
    return shapes + [(2048, 1000), (1000,)]


class Variables:
    """Shared variables of one case, with functions that use and update them."""

    def __init__(self, name, shapes):
        self.name = name
        self.variables = [shared(np.ones(shape, "float32"), f"{name} {i}") for i, shape in enumerate(shapes)]
        self.first = self.variables[0]
        self.nbytes = 4 * sum(int(np.prod(shape)) for shape in shapes)
        self.use = synk.function([], (self.first.sum(), None))
        # Like any update, this function leaves a new array in every variable on every rank.
        self.update = synk.function([], updates=[(v, v * np.float32(1)) for v in self.variables])
        self.given = self.variables if len(shapes) > 1 else self.first

    def fill(self, n):
        """Set the variables on each rank r to r + 1."""
        for rank in range(n):
            synk.set_value(
                rank,
                self.given,
                [np.full(v.get_value(borrow=True).shape, rank + 1, "float32") for v in self.variables]
                if self.given is self.variables
                else np.full(self.first.get_value(borrow=True).shape, rank + 1, "float32"),
            )

    def holds(self, value):
        """Return whether all variables have the value on all ranks."""
        return bool(synk.in_sync(self.given)) and all(np.all(v.get_value(borrow=True) == value) for v in self.variables)


def run(groups, n=2, sizes=SIZES, most=500, many=None):
    """Yield the result rows of all collectives and sizes, and of ResNet-50's variables in one call."""
    of_size = {size: Variables(label(size), [(size // 4,)]) for size in sizes}
    shapes = resnet50_shapes() if many is None else many
    whole = Variables("flat", [(sum(int(np.prod(shape)) for shape in shapes),)])
    parts = Variables(f"{len(shapes)} variables", shapes)
    synk.fork(n, use_gpu=False)
    try:
        for size, one in of_size.items():
            yield from sized(groups, n, one, repeats_for(size, most))
        repeats = repeats_for(whole.nbytes, most)
        for each in (whole, parts):
            each.fill(n)
            synk.all_reduce(each.given)
        times = measure_in_turn({"synkhronos": reducer(parts, n), "one flat variable": reducer(whole, n)}, repeats)
        yield {"case": f"all_reduce, {len(shapes)} variables", "n": n, "nbytes": whole.nbytes, "times": times}
        times = measure_in_turn(
            {"synkhronos": reducer(parts, n, fresh=True), "one flat variable": reducer(whole, n, fresh=True)}, repeats
        )
        yield {"case": f"all_reduce, {len(shapes)} updated variables", "n": n, "nbytes": whole.nbytes, "times": times}
    finally:
        synk.close()


def reducer(one, n, fresh=False):
    """Return a contender that calls `synk.all_reduce` for these variables."""
    return Local(lambda: synk.all_reduce(one.given), lambda: one.holds((n + 1) / 2), one.update if fresh else None)


def sized(groups, n, one, repeats):
    """Yield the result rows of all collectives for one size."""
    source, target = np.ones(one.nbytes // 4, "float32"), np.empty(one.nbytes // 4, "float32")

    def measured(case, what, ours):
        times = measure_in_turn(
            {
                "synkhronos": ours,
                **groups.contenders(COLLECTIVES, n, what, one.nbytes),
                "memcpy": Local(lambda: np.copyto(target, source)),
            },
            repeats,
        )
        return {"case": case, "n": n, "nbytes": one.nbytes, "times": times}

    one.fill(n)
    synk.all_reduce(one.given)
    yield measured("all_reduce, in slots", "all_reduce", reducer(one, n))
    yield measured("all_reduce, updated", "all_reduce", reducer(one, n, fresh=True))
    yield measured("reduce", "reduce", Local(lambda: synk.reduce(one.given), lambda: one.holds((n + 1) / 2)))
    yield measured("broadcast", "broadcast", Local(lambda: synk.broadcast(one.given), lambda: one.holds((n + 1) / 2)))
    results = []

    def gather():
        results[:] = [synk.gather(one.given)]

    yield measured("gather", "gather", Local(gather, lambda: results[0].shape == (n, one.nbytes // 4)))
    values = synk.data(np.full(n * (one.nbytes // 4), 7, "float32"))
    yield measured(
        "scatter",
        "scatter",
        Local(
            lambda: synk.scatter(one.given, values, batch=one.nbytes // 4),
            lambda: one.first.get_value(borrow=True)[-1] == 7,
        ),
    )
    data = synk.data(source)

    def restore():  # restores the length, which would otherwise grow with each call
        synk.broadcast(one.given, data)

    restore()
    yield measured(
        "all_gather",
        "all_gather",
        Local(
            lambda: synk.all_gather(one.given),
            lambda: one.first.get_value(borrow=True).shape == (n * len(source),),
            restore,
        ),
    )
    restore()


def label(nbytes):
    """Format a size for tables."""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"
