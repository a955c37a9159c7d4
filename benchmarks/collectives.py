"""Benchmark of collectives on shared variables, compared with MPI and Gloo on plain arrays, and with a memory copy."""

import mmap

import numpy as np

import synkhronos as synk
from synkhronos.kernels.copy import copy_into

from .at_once import AtOnce
from .library import T, shared
from .measure import Local, measure_in_turn, repeats_for
from .peers.group import COLLECTIVES

#: The least memory traffic of an all_reduce into each rank's own array: each rank reads and writes as much as it has.
BOUND = "simultaneous copies on all ranks"
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
    """Shared variables of one case, with functions that use and update them.

    With ``in_place``, a function overwrites their arrays, as most training steps do, so that collectives store a result
    for each rank. Otherwise, an update leaves a new array on each rank, like most gradients, and all ranks have results
    in common.
    """

    def __init__(self, name, shapes, in_place=True):
        self.name, self.in_place = name, in_place
        self.variables = [shared(np.ones(shape, "float32"), f"{name} {i}") for i, shape in enumerate(shapes)]
        self.first = self.variables[0]
        self.nbytes = 4 * sum(int(np.prod(shape)) for shape in shapes)
        self.use = synk.function([], (self.first.sum(), None))
        self.level = shared(np.float32(0), f"level of {name}")
        # unknown lengths, because a variable's type does not fix lengths of 1
        lengths = [[shared(np.array(shape))[axis] for axis in range(len(shape))] for shape in shapes]
        new = [
            v * np.float32(2) if in_place else T.alloc(self.level, *of_axes)
            for v, of_axes in zip(self.variables, lengths)
        ]
        self.update = synk.function([], updates=list(zip(self.variables, new)), exact=False)
        self.given = self.variables if len(shapes) > 1 else self.first

    def fill(self, n):
        """Set the variables on each rank r to r + 1; updates set them to the average."""
        synk.broadcast(self.level, np.float32((n + 1) / 2))
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
    of_size = {size: [Variables(label(size), [(size // 4,)], in_place) for in_place in (True, False)] for size in sizes}
    shapes = resnet50_shapes() if many is None else many
    flat = [(sum(int(np.prod(shape)) for shape in shapes),)]
    wholes, parts = (
        [Variables(name, each, in_place) for in_place in (True, False)]
        for name, each in (("flat", flat), (f"{len(shapes)} variables", shapes))
    )
    synk.fork(n, use_gpu=False)
    synk.distribute()
    try:
        for size, (one, new) in of_size.items():
            yield from sized(groups, n, one, new, repeats_for(size, most))
        repeats = repeats_for(wholes[0].nbytes, most)
        for each in (*wholes, *parts):
            each.fill(n)
            synk.all_reduce(each.given)
        for what, whole, part in zip(("variables", "updated variables"), wholes, parts):
            times = measure_in_turn({"synkhronos": reducer(part, n), "one flat variable": reducer(whole, n)}, repeats)
            yield {"case": f"all_reduce, {len(shapes)} {what}", "n": n, "nbytes": whole.nbytes, "times": times}
    finally:
        synk.close()


def reducer(one, n):
    """Return a contender that calls `synk.all_reduce` for these variables."""
    before = None if one.in_place else one.update
    return Local(lambda: synk.all_reduce(one.given), lambda: one.holds((n + 1) / 2), before)


def copier(nbytes):
    """Return a contender that copies an array in shared memory, in turn there and back, as slots change roles."""
    arrays = [np.frombuffer(mmap.mmap(-1, nbytes), "float32") for _ in range(2)]

    def copy():
        arrays.reverse()
        copy_into(*arrays)

    return Local(copy)


def sized(groups, n, one, new, repeats):
    """Yield the result rows of all collectives for one size; ``new`` are variables that are not updated in place."""
    source, target = np.ones(one.nbytes // 4, "float32"), np.empty(one.nbytes // 4, "float32")

    def measured(case, what, ours, **others):
        times = measure_in_turn(
            {
                "synkhronos": ours,
                **groups.contenders(COLLECTIVES, n, what, one.nbytes),
                "memcpy": Local(lambda: np.copyto(target, source)),
                **others,
            },
            repeats,
        )
        return {"case": case, "n": n, "nbytes": one.nbytes, "times": times}

    for each in (one, new):
        each.fill(n)
        synk.all_reduce(each.given)
    with AtOnce([{BOUND: copier(one.nbytes)} for _ in range(n)]) as at_once:
        yield measured("all_reduce, in slots", "all_reduce", reducer(one, n), **{BOUND: at_once.contender(BOUND)})
    yield measured("all_reduce, updated", "all_reduce", reducer(new, n))
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
    yield measured(
        "all_gather",
        "all_gather",
        Local(
            lambda: synk.all_gather(new.given),
            lambda: new.first.get_value(borrow=True).shape == (n * len(source),),
            new.update,  # restores the length, which would otherwise grow with each call
        ),
    )
    new.update()


def label(nbytes):
    """Format a size for tables."""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"
