"""ADVI of a logistic regression whose rows are read from files, one batch per file."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pymc as pm

import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel

COEFFICIENTS = [1.0, -2.0, 0.5]


def write_files(folder, n_files, rows):
    random = np.random.default_rng(0)
    paths = [Path(folder) / f"{i}.npz" for i in range(n_files)]
    for path in paths:
        X = random.normal(size=(rows, 3))
        np.savez(path, X=X, y=random.random(rows) < 1 / (1 + np.exp(-X @ COEFFICIENTS)))
    return paths


def read(path):
    with np.load(path) as file:
        return file["X"], file["y"]


def model_of_files(paths, total_size):
    def logp(X, y, beta):
        return pm.logp(pm.Bernoulli.dist(logit_p=X @ beta), y)

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        data_parallel(logp, params=[beta], batch=synk.loader(read, paths), total_size=total_size)
    return model


def main(n_files=20, rows=1000, steps=1000, ranks=2):
    with tempfile.TemporaryDirectory() as folder:
        model = model_of_files(write_files(folder, n_files, rows), total_size=n_files * rows)
        with synk.fork(ranks):
            fitted = pm.fit(
                steps, model=model, random_seed=1, progressbar=False, obj_optimizer=pm.adam(learning_rate=0.02)
            )
    means = fitted.sample(500, random_seed=1).posterior["beta"].mean(("chain", "draw")).values
    print("ADVI", means, "true coefficients", COEFFICIENTS)
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-files", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    main(**vars(parser.parse_args()))
