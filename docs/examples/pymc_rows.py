"""Data-parallel logistic regression in PyMC, compared with the plain model."""

import argparse

import numpy as np
import pymc as pm

import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel


def plain_model(X, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    return model


def model_of_a_function(X, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=X.shape[1])
        data_parallel(lambda X, y: pm.logp(pm.Bernoulli.dist(logit_p=X @ beta), y), [X, y])
    return model


def main(rows=20000, draws=200, ranks=2):
    random = np.random.default_rng(0)
    X = random.normal(size=(rows, 3))
    y = (random.random(rows) < 1 / (1 + np.exp(-X @ [1.0, -2.0, 0.5]))).astype("int64")

    model = data_parallel(plain_model(X, y))  # the same model, with its rows in shared memory
    in_batches = data_parallel(plain_model(X, y), batch=rows // 10)
    options = dict(draws=draws, tune=draws, chains=2, cores=1, random_seed=1, progressbar=False)

    synk.fork(ranks)
    sampled = pm.sample(model=model, **options).posterior["beta"].mean(("chain", "draw")).values
    best = pm.find_MAP(model=model_of_a_function(X, y), progressbar=False)["beta"]
    fitted = pm.fit(2000, model=in_batches, random_seed=1, progressbar=False, obj_optimizer=pm.adam(learning_rate=0.02))
    means = fitted.sample(500, random_seed=1).posterior["beta"].mean(("chain", "draw")).values
    synk.close()

    serial = pm.sample(model=plain_model(X, y), **options).posterior["beta"].mean(("chain", "draw")).values
    print("NUTS", sampled, "plain PyMC", serial, "find_MAP", best, "ADVI in batches", means)
    return sampled, serial, best, means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    main(**vars(parser.parse_args()))
