"""Data: arrays in shared memory, put there once, which all ranks read in place and the program writes like NumPy's.

python -m synkhronos demos/02_data.py --n-parallel 3
"""

import argparse
import os
import tempfile

import numpy as np
import theano.tensor as T

import synkhronos as synk


def main(n_parallel=None, devices=None):
    """Write, grow and map Data, and see in every call that all ranks have what the program has."""
    n_ranks = synk.fork(n_parallel, devices is not None, devices=devices)
    x = T.dmatrix("x")
    f = synk.function(inputs=[x], outputs=[x.mean(axis=0), (x.max(axis=0), "max")])

    def check(what, data):
        for parallel, serial in zip(f(data), f.as_theano(np.array(data))):
            np.testing.assert_allclose(parallel, serial, rtol=1e-12, err_msg=what)
        print(f"{what:40s} {n_ranks} ranks see {len(data)} rows, mean {np.round(data.data.mean(), 3)}")

    numbers = np.random.RandomState(0).rand(1000, 3)
    data = synk.data(numbers, oversize=1.5, name="numbers")
    check("copied into shared memory:", data)

    data[::2] *= 10
    check("every second row written in place:", data)
    numbers[::2] *= 10
    np.testing.assert_array_equal(data, numbers)

    data.set_length(1200)  # there is room up to 1500 rows: nothing moves
    data[1000:] = 1
    np.testing.assert_array_equal(data[:1000], numbers)
    check("grown, the rows that were there kept:", data)

    inputs = f.build_inputs([[1, 2, 3], [4, 5, 6], [7, 8, 9]], force_cast=True)  # converted to what f takes
    check("built of what the function's input is:", inputs)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "numbers.npy")
        np.save(path, numbers)
        mapped = synk.data(path)  # every rank maps the file: a data set may be larger than memory
        check("a file, mapped and not copied:", mapped)
        mapped.free_memory()
    print("all as in plain Theano")
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    parser.add_argument("--devices", nargs="+", help="of every rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (some seconds the first time)", flush=True)
    main(**vars(arguments))
