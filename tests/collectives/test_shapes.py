import numpy as np
import table

import synkhronos as synk


def test_shapes_and_lengths(world):
    kinds = [(), (3,), (2, 3), (0, 2, 1), (1, 2, 3, 4)]
    variables = world.shareds([np.zeros(shape, "float32") for shape in kinds])
    assert synk.get_shapes(variables) == [[shape] * world.n for shape in kinds]
    assert synk.get_lengths(tuple(variables[1:])) == [[shape[0]] * world.n for shape in kinds[1:]]
    shapes = [(rank + 1, 2 * rank) for rank in range(world.n)]
    world.set_values(variables[2], [np.zeros(shape, "float32") for shape in shapes])
    assert synk.get_shapes(variables[2]) == shapes
    assert synk.get_lengths(variables[2]) == [shape[0] for shape in shapes]
    assert synk.get_lengths([variables[2]]) == [[shape[0] for shape in shapes]]


def test_after_scatter(threads):
    X = threads.shared(np.zeros((1, 2)))
    for length in range(6):
        synk.scatter(X, np.zeros((length, 4)))
        lengths = [len(part) for part in np.array_split(np.zeros(length), threads.n)]
        if length < threads.n:
            lengths = [0] * threads.n
            for rank in ([threads.root] + [rank for rank in range(threads.n) if rank != threads.root])[:length]:
                lengths[rank] = 1
        assert synk.get_lengths(X) == lengths
        assert synk.get_shapes(X) == [(rows, 4) for rows in lengths]


def test_of_0_dimensions(three, refused):
    scale = three.shared(table.value("float64", ()), "scale")
    assert synk.get_shapes(scale) == [(), (), ()]
    refused(three, ValueError, lambda: synk.get_lengths(scale), got="scale with 0", hint="use get_shapes")
