"""Benchmark of training steps on JAX's devices, compared with hand-written ``jit(shard_map)`` programs.

Calls send the rows of a batch. ``steps`` sends indices, because the data are on the devices; the hand-written program
does the same in one ``lax.scan``. In local SGD, each rank makes a step on its own rows, and `all_reduce` averages the
weights; the hand-written program has a function for each.

python -m benchmarks.mesh                       # prints the table of docs/gpus.rst; about ten minutes
python -m benchmarks.mesh --write               # also writes it, into docs/mesh_table.inc
python -m benchmarks.mesh --once 100 "a CNN"    # one run of some networks, on JAX_NUM_CPU_DEVICES devices

Each run is a process of its own, because a process in which JAX runs can fork no ranks afterwards.
"""

import argparse
import datetime
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
DOCUMENT = ROOT / "docs" / "mesh_table.inc"
RATE = np.float32(0.01)

#: Networks of pytensor-ml: channels of convolutions or None, units of the layers, rows of a batch, steps of a command.
NETWORKS = {
    "a small MLP": (None, (64, 128, 10), 64, 256),
    "the MNIST MLP": (None, (784, 800, 800, 10), 500, 8),
    "a CNN": ((1, 16, 16), (784, 10), 128, 8),
}
#: Descriptions of the networks in the table.
DESCRIPTIONS = {
    "a small MLP": "MLP 64-128-10, 64 rows",
    "the MNIST MLP": "MLP 784-800-800-10, 500 rows",
    "a CNN": "CNN, 28 x 28 pixels, 128 rows",
}
#: Ways to make a step, with the headings of the table.
WAYS = {
    "step": "a call",
    "step in steps": "a step in ``steps``, with data on the devices",
    "step of local SGD": "a step of local SGD",
}
N_LOCAL = 8  #: Number of steps of local SGD that are measured together, because the hand-written program does not wait.


def missing():
    """Return the name of a missing package; None if all are installed."""
    needed = {"jax": "jax", "pytensor_ml": "pytensor-ml"}
    return next((package for name, package in needed.items() if importlib.util.find_spec(name) is None), None)


def run(groups, n=2, networks=tuple(NETWORKS), repeats=100):
    """Yield three rows per network with the quotient of the times of a step: ours, and the hand-written program's."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mesh", "--once", str(repeats), *networks],
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
            x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # as pytensor-ml does
            x = jax.lax.conv_general_dilated(
                x, of[f"conv{i}_W"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
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

    def local_steps(x, y):
        for _ in range(N_LOCAL):
            own[0], values = own_step(own[0], *jax.device_put((x, y), rows))
            own[0] = averaged(own[0])
            value = np.asarray(values).mean()
        jax.block_until_ready(own[0])
        return value

    def on_devices(*arrays):
        return jax.device_put(arrays, NamedSharding(mesh, replicated))

    return step, steps, local_steps, on_devices


def quotients(network, n, repeats):
    """Return the rows of a network."""
    channels, units, n_rows, n_most = NETWORKS[network]
    random = np.random.default_rng(0)
    shape = (28, 28, 1) if channels else (units[0],)
    x = random.normal(size=(4 * n_rows, *shape)).astype("float32")
    units = (channels[-1] * 7 * 7, *units[1:]) if channels else units
    y = random.integers(0, units[-1], len(x))
    ours_step, weights = ours(channels, units, x)
    step, steps, local_steps, on_devices = by_hand(channels, weights, n)
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
        for _ in range(N_LOCAL):
            value = own_step(x, y)
            synk.all_reduce(own_weights)
        return value

    found = []
    pairs = (
        ("step", 1, draw_rows, ours_step, step),
        ("step in steps", n_most, draw_batches, loop, loop_by_hand),
        ("step of local SGD", N_LOCAL, draw_rows, local_sgd, local_steps),
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
        value = float(np.median(of_mine / of_theirs))
        found.append({"case": case, "n": n, "value": value, "network": network, "way": title, "by hand": float(work)})
    return found


def table(runs):
    """Return the table of the page about GPUs: medians of several runs, with the ranges in parentheses."""
    lines = [f"Median and range of {len(runs)} runs on {datetime.date.today().isoformat()}:", "", ".. list-table::"]
    lines += ["   :header-rows: 1", "", "   * - network", "     - a step by hand"]
    lines += [f"     - {heading}" for heading in WAYS.values()]
    for network, description in DESCRIPTIONS.items():
        all_rows = [row for rows in runs for row in rows if row["network"] == network]
        of_network = {way: [row for row in all_rows if row["way"] == way] for way in WAYS}
        by_hand_ms = np.median([row["by hand"] for row in of_network["step"]])
        lines += [f"   * - {description}", f"     - {by_hand_ms:.2g} ms"]
        for rows in of_network.values():
            values = [row["value"] for row in rows]
            lines.append(f"     - {np.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Print the table, or the rows of one run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mesh", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=4, help="number of runs (default: 4)")
    parser.add_argument("--repeats", type=int, default=100, help="number of steps of each run (default: 100)")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("--once", nargs="+", metavar="REPEATS NETWORK", help="print the rows of a run in this process")
    given = parser.parse_args(arguments)
    if given.once:
        repeats, *networks = given.once
        import pytensor

        pytensor.config.floatX = "float32"
        with synk.fork(devices="jax") as n:
            of_network = functools.partial(quotients, n=n, repeats=int(repeats))
            print(json.dumps(list(map(of_network, networks or NETWORKS))))
        return
    text = table([list(run(None, repeats=given.repeats)) for _ in range(given.runs)])
    print(text)
    if given.write:
        DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
