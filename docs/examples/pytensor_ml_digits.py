"""Train a pytensor-ml network on all cores, and compare its parameters with those of the plain library."""

import argparse

import numpy as np
from pytensor_ml.activations import ReLU
from pytensor_ml.layers import Conv2D, Flatten, Input, Linear, MaxPool2D, Sequential
from pytensor_ml.loss import CrossEntropy
from pytensor_ml.model import Model
from pytensor_ml.optim import adam, chain, clip_by_global_norm

import synkhronos as synk


def digits(n):
    """Return images of noisy bars, n x 8 x 8 x 1, and the bars' numbers."""
    random = np.random.default_rng(0)
    classes = random.integers(0, 8, n)
    images = 0.3 * random.normal(size=(n, 8, 8, 1))
    images[np.arange(n), classes] += 1
    return images, classes


def build():
    images = Input("images", shape=(None, 8, 8, 1))
    network = Sequential(
        Conv2D("conv", in_channels=1, out_channels=8, kernel_size=3),
        ReLU(),
        MaxPool2D("pool", kernel_size=2),
        Flatten,
        Linear("classes", n_in=72, n_out=8),
    )
    return Model(network(images)).initialize(seed=0)


def compile_train(model):
    rule = chain(clip_by_global_norm(1.0), adam(1e-2))
    return model.compile_train(rule, CrossEntropy(expect_logits=True))


def main(rows=4096, batch=128, ranks=2):
    images, classes = digits(rows)
    batches = np.split(np.random.default_rng(1).permutation(rows), rows // batch)

    synk.fork(ranks)
    model = build()
    with synk.functions():
        step = compile_train(model)
    losses = step.steps(images, classes, batches=batches)  # an epoch
    synk.close()

    plain = build()
    serial = compile_train(plain)
    serial_losses = [serial(images[rows], classes[rows]) for rows in batches]
    difference = max(
        np.max(np.abs(one.get_value() - other.get_value())) for one, other in zip(model.weights, plain.weights)
    )
    print(f"loss {np.ravel(losses)[0]:.3f} to {np.ravel(losses)[-1]:.3f}; plain library {serial_losses[-1]:.3f}; ")
    print(f"largest difference of a parameter: {difference:.1e}")
    return losses, serial_losses, difference


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=2)
    main(**vars(parser.parse_args()))
