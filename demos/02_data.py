"""Data: arrays in shared memory, copied once, read by all ranks in place, and written like NumPy arrays.

python -m synkhronos demos/02_data.py --n-ranks 3
"""

import argparse
import os
import tempfile

import numpy as np
import theano.tensor as T

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Write, grow and map Data; check with calls that all ranks see the program's values."""
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    x = T.dmatrix("x")
    f = synk.function(inputs=[x], outputs=[x.mean(axis=0), (x.max(axis=0), "max")])

    def check(what, data):
        for parallel, serial in zip(f(data), f.as_theano(np.array(data))):
            np.testing.assert_allclose(parallel, serial, rtol=1e-12, err_msg=what)
        print(f"{what:40s} ranks: {n_ranks}, rows: {len(data)}, mean: {np.round(data.data.mean(), 3)}")

    numbers = np.random.RandomState(0).rand(1000, 3)
    data = synk.data(numbers, oversize=1.5, name="numbers")
    check("copied into shared memory:", data)

    data[::2] *= 10
    check("every second row written in place:", data)
    numbers[::2] *= 10
    np.testing.assert_array_equal(data, numbers)

    data.set_length(1200)  # nothing is copied, because there is room for 1,500 rows
    data[1000:] = 1
    np.testing.assert_array_equal(data[:1000], numbers)
    check("grown, existing rows kept:", data)

    inputs = f.build_inputs([[1, 2, 3], [4, 5, 6], [7, 8, 9]], force_cast=True)  # converted to the input type of f
    check("built with the function's input type:", inputs)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "numbers.npy")
        np.save(path, numbers)
        mapped = synk.data(path)  # every rank maps the file, so data sets may exceed memory
        check("a file, mapped and not copied:", mapped)
        mapped.free_memory()
    print("all equal to plain Theano")
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--devices", nargs="+", help="device of each rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (a few seconds the first time)", flush=True)
    main(**vars(arguments))
