"""Benchmark of training steps on JAX's devices, compared with hand-written ``jit(shard_map)`` programs.

Calls send the rows of a batch. ``steps`` sends indices, because the data are on the devices; the hand-written program
does the same in one ``lax.scan``. In local SGD, each rank makes a step on its own rows, and `all_reduce` averages the
weights; the hand-written program has a function for each.

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

#: Networks of pytensor-ml: channels of convolutions or None, units of the layers, rows of a batch, steps of a command.
NETWORKS = {
    "a small MLP": (None, (64, 128, 10), 64, 256),
    "the MNIST MLP": (None, (784, 800, 800, 10), 500, 8),
    "a CNN": ((1, 16, 16), (784, 10), 128, 8),
}


def missing():
    """Return the name of a missing package; None if all are installed."""
    needed = {"jax": "jax", "pytensor_ml": "pytensor-ml"}
    return next((package for name, package in needed.items() if importlib.util.find_spec(name) is None), None)


def run(groups, n=2, networks=tuple(NETWORKS), repeats=100):
    """Yield three rows per network with the quotient of the times of a step: ours, and the hand-written program's."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mesh", str(repeats), *networks],
        cwd=str(ROOT),
        env=dict(os.environ, JAX_NUM_CPU_DEVICES=str(n), JAX_PLATFORMS="cpu"),
        stdout=subprocess.PIPE,
        check=True,
    )
    for rows in json.loads(done.stdout.splitlines()[-1]):
        yield from rows


def ours(channels, units, data, exact=True):
    """Return a step by our function, with its weights; unless ``exact``, each rank makes a step of its own."""
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
    with synk.functions(exact=exact):
        step = model.compile_train(sgd(float(RATE)), CrossEntropy(expect_logits=True))
    return step, model.weights


def by_hand(channels, weights, n):
    """Return, written for JAX: a step of the network, many steps on data on all devices, and a step of local SGD."""
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

    def local(of, x, y):
        own = {name: of[name][0] for name in of}
        value, gradients = jax.value_and_grad(loss)(own, x, y)
        return {name: (own[name] - RATE * gradients[name])[None] for name in of}, value[None]

    def average(of):
        return jax.lax.pmean(of, "ranks")

    def many(of, x, y, batches):
        return jax.lax.scan(lambda of, rows: one(of, x[rows], y[rows]), of, batches)

    def compiled(function, *inputs, of_state=replicated):
        specs = dict(in_specs=(of_state, *inputs), out_specs=of_state, check_vma=False)
        return jax.jit(jax.shard_map(function, mesh=mesh, **specs), donate_argnums=0)

    state, rows, of_steps = [of], NamedSharding(mesh, all_rows), PartitionSpec(None, "ranks")
    one_step = compiled(one, all_rows, all_rows)
    many_steps = compiled(many, replicated, replicated, of_steps)
    own_step = compiled(local, all_rows, all_rows, of_state=all_rows)
    averaged = compiled(average, of_state=all_rows)
    own = [{weight.name: jax.device_put(np.stack([weight.get_value()] * n), rows) for weight in weights}]

    def step(x, y):
        state[0], value = one_step(state[0], *jax.device_put((x, y), rows))
        return np.asarray(value)

    def steps(x, y, batches):
        there = jax.device_put(batches, NamedSharding(mesh, of_steps))
        state[0], values = many_steps(state[0], x, y, there)
        return np.asarray(values)

    def local_step(x, y):
        own[0], values = own_step(own[0], *jax.device_put((x, y), rows))
        own[0] = averaged(own[0])
        return np.asarray(values).mean()

    def on_devices(*arrays):
        return jax.device_put(arrays, NamedSharding(mesh, replicated))

    return step, steps, local_step, on_devices


def quotients(network, n, repeats):
    """Return the rows of a network."""
    channels, units, n_rows, n_most = NETWORKS[network]
    random = np.random.default_rng(0)
    shape = (28, 28, 1) if channels else (units[0],)
    x = random.normal(size=(4 * n_rows, *shape)).astype("float32")
    units = (channels[-1] * 7 * 7, *units[1:]) if channels else units
    y = random.integers(0, units[-1], len(x))
    ours_step, weights = ours(channels, units, x)
    step, steps, local_step, on_devices = by_hand(channels, weights, n)
    own_step, own_weights = ours(channels, units, x, exact=False)
    of_ours, by_jax = (synk.data(x, device=True), synk.data(y, device=True)), on_devices(x, y)

    def draw_rows():
        return x[:n_rows], y[:n_rows]

    def draw_batches():
        return (np.stack([random.permutation(len(x))[:n_rows] for _ in range(n_most)]),)

    def loop(batches):
        return ours_step.steps(*of_ours, batches=batches)

    def loop_by_hand(batches):
        return steps(*by_jax, batches)

    def local_sgd(x, y):
        value = own_step(x, y)
        synk.all_reduce(own_weights)
        return value

    found = []
    pairs = (
        ("step", 1, draw_rows, ours_step, step),
        ("step in steps", n_most, draw_batches, loop, loop_by_hand),
        ("step of local SGD", 1, draw_rows, local_sgd, local_step),
    )
    for title, n_steps, draw, mine, theirs in pairs:
        for _ in range(3):
            arguments = draw()
            np.testing.assert_allclose(mine(*arguments), theirs(*arguments), rtol=1e-3)
        seconds = []
        for _ in range(max(2, repeats // n_steps)):
            arguments, times = draw(), []
            for function in (mine, theirs):
                begin = time.perf_counter()
                function(*arguments)
                times.append((time.perf_counter() - begin) / n_steps)
            seconds.append(times)
        of_mine, of_theirs = np.array(seconds).T
        work = 1e3 * np.median(of_theirs)
        case = f"{title} of {network} on JAX's devices ({work:.2g} ms by hand), quotient to jit(shard_map)"
        found.append({"case": case, "n": n, "value": float(np.median(of_mine / of_theirs))})
    return found


def main(repeats="100", *networks):
    import pytensor

    pytensor.config.floatX = "float32"
    with synk.fork(devices="jax") as n:
        print(json.dumps(list(map(functools.partial(quotients, n=n, repeats=int(repeats)), networks or NETWORKS))))


if __name__ == "__main__":
    main(*sys.argv[1:])
