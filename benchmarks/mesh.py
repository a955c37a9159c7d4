"""Benchmark of training steps on JAX's devices, compared with hand-written ``jit(shard_map)`` programs.

python -m benchmarks.mesh [REPEATS]     # prints the rows; JAX_NUM_CPU_DEVICES=2 must be set

`run` starts this program in a subprocess, because a process in which JAX runs can fork no ranks afterwards.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import synkhronos as synk

ROOT = Path(__file__).resolve().parents[1]
RATE = np.float32(0.01)

#: Networks of pytensor-ml: channels of convolutions or None, units of the layers, and rows of a batch.
NETWORKS = {
    "a small MLP": (None, (64, 128, 10), 64),
    "the MNIST MLP": (None, (784, 800, 800, 10), 500),
    "a CNN": ((1, 16, 16), (784, 10), 128),
}


def missing():
    """Return the name of a missing package; None if all are installed."""
    needed = {"jax": "jax", "pytensor_ml": "pytensor-ml"}
    return next((package for name, package in needed.items() if importlib.util.find_spec(name) is None), None)


def run(groups, n=2, networks=tuple(NETWORKS), repeats=100):
    """Yield a row per network with the quotient of the times of a step: ours, and the hand-written program's."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mesh", str(repeats), *networks],
        cwd=str(ROOT),
        env=dict(os.environ, JAX_NUM_CPU_DEVICES=str(n), JAX_PLATFORMS="cpu"),
        stdout=subprocess.PIPE,
        check=True,
    )
    yield from json.loads(done.stdout.splitlines()[-1])


def ours(channels, units, data):
    """Return a step by our function, with its weights."""
    from pytensor_ml import activations, layers
    from pytensor_ml.loss import CrossEntropy
    from pytensor_ml.model import Model
    from pytensor_ml.optim import sgd

    made = []
    for i, (n_in, n_out) in enumerate(zip(channels or (), (channels or ())[1:])):
        made += [layers.Conv2D(f"conv{i}", in_channels=n_in, out_channels=n_out, kernel_size=3, padding="same")]
        made += [activations.Tanh(), layers.MaxPool2D(f"pool{i}", kernel_size=2)]
    made += [layers.Flatten] if channels else []
    for i, (n_in, n_out) in enumerate(zip(units, units[1:])):
        made += [layers.Linear(f"linear{i}", n_in=n_in, n_out=n_out), activations.Tanh()]
    images = layers.Input("images", shape=(None, *data.shape[1:]))
    model = Model(layers.Sequential(*made[:-1])(images)).initialize(seed=0)
    with synk.functions():
        step = model.compile_train(sgd(float(RATE)), CrossEntropy(expect_logits=True))
    return step, model.weights


def by_hand(channels, weights, n):
    """Return a step of the same network, written for JAX; its state is a list of replicated arrays."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.local_devices()[:n]), ("ranks",))
    all_rows, replicated = PartitionSpec("ranks"), PartitionSpec()
    of = {weight.name: jax.device_put(weight.get_value(), NamedSharding(mesh, replicated)) for weight in weights}
    n_convolutions = len(channels or ()) - 1
    n_layers = sum(name.startswith("linear") for name in of) // 2

    def loss(of, x, y):
        for i in range(n_convolutions):
            x = jax.lax.conv_general_dilated(
                x, of[f"conv{i}_W"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jnp.tanh(x + of[f"conv{i}_b"])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        for i in range(n_layers):
            x = x @ of[f"linear{i}_W"] + of[f"linear{i}_b"]
            x = jnp.tanh(x) if i < n_layers - 1 else x
        return -jax.nn.log_softmax(x)[jnp.arange(len(y)), y].mean()

    def one(of, x, y):
        value, gradients = jax.lax.pmean(jax.value_and_grad(loss)(of, x, y), "ranks")
        return {name: of[name] - RATE * gradients[name] for name in of}, value

    specs = dict(in_specs=(replicated, all_rows, all_rows), out_specs=replicated, check_vma=False)
    compiled = jax.jit(jax.shard_map(one, mesh=mesh, **specs), donate_argnums=0)
    state, rows = [of], NamedSharding(mesh, all_rows)

    def step(x, y):
        state[0], value = compiled(state[0], *jax.device_put((x, y), rows))
        return np.asarray(value)

    return step, state


def quotient(network, n, repeats):
    """Return the row of a network."""
    channels, units, rows = NETWORKS[network]
    random = np.random.default_rng(0)
    shape = (28, 28, 1) if channels else (units[0],)
    x = random.normal(size=(rows, *shape)).astype("float32")
    units = (channels[-1] * 7 * 7, *units[1:]) if channels else units
    y = random.integers(0, units[-1], rows)
    step, weights = ours(channels, units, x)
    other, _ = by_hand(channels, weights, n)
    for _ in range(3):
        np.testing.assert_allclose(step(x, y), other(x, y), rtol=1e-4)
    seconds = {step: [], other: []}
    for _ in range(repeats):
        for function, found in seconds.items():
            begin = time.perf_counter()
            function(x, y)
            found.append(time.perf_counter() - begin)
    mine, theirs = map(np.array, seconds.values())
    work = 1e3 * np.median(theirs)
    case = f"step of {network} on JAX's devices ({work:.2g} ms by hand), quotient to jit(shard_map)"
    return {"case": case, "n": n, "value": float(np.median(mine / theirs))}


def main(repeats="100", *networks):
    import pytensor

    pytensor.config.floatX = "float32"
    with synk.fork(devices="jax") as n:
        print(json.dumps(list(map(functools.partial(quotient, n=n, repeats=int(repeats)), networks or NETWORKS))))


if __name__ == "__main__":
    main(*sys.argv[1:])
