"""Measure training steps and all_reduce on a GPU, and write the times to a JSON file.

    python benchmarks/gpu/measure.py --device cuda0 --out times.json

Every measurement runs in its own process. Training steps are compared with plain Theano on the same device, and
all_reduce with a copy of the same size within the device's memory. Several ranks share the device and cannot be
faster than one rank, so the times show the overhead of parallel execution.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 100 << 20, 400 << 20]


def median_seconds(call, wait, repeats):
    """Return the median time of a call, including the device's work, after two warm-up calls."""
    times = []
    for i in range(repeats + 2):
        wait()
        start = time.perf_counter()
        call()
        wait()
        if i > 1:
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def step(device, n_ranks, batch, repeats):
    """Time a training step of an MLP for MNIST; 0 ranks means plain Theano."""
    import synkhronos as synk

    synk.fork(devices=[device] * max(1, n_ranks))  # plain Theano uses the same device
    import numpy as np
    import theano
    import theano.tensor as T

    random = np.random.RandomState(0)
    x, y = T.fmatrix("x"), T.ivector("y")
    layer, params = x, []
    for rows, columns in ((784, 800), (800, 800), (800, 10)):
        params.append(theano.shared((random.randn(rows, columns) / rows**0.5).astype("float32")))
        layer = layer.dot(params[-1])
        layer = T.nnet.softmax(layer) if columns == 10 else layer * T.nnet.sigmoid(4 * layer)
    loss = T.nnet.categorical_crossentropy(layer, y).mean()
    updates = [(p, p - np.float32(0.1) * g) for p, g in zip(params, T.grad(loss, params))]
    images, labels = random.rand(batch, 784).astype("float32"), random.randint(0, 10, batch).astype("int32")
    if n_ranks:
        train = synk.function([x, y], loss, updates=updates)
        images, labels = synk.data(images), synk.data(labels)

        def call():
            train(images, labels)
            synk.all_reduce(params, weights=train)
    else:
        train = theano.function([x, y], loss, updates=updates)

        def call():
            train(images, labels)

    def wait():
        params[0].container.storage[0].sync()

    seconds = median_seconds(call, wait, repeats)
    synk.close()
    return seconds


def reduction(device, n_ranks, nbytes, nccl, repeats):
    """Time all_reduce of one variable; None if NCCL is requested but not available."""
    import synkhronos as synk
    from synkhronos.program.program import PROGRAM

    synk.fork(devices=[device] * n_ranks)
    import numpy as np
    import theano

    if nccl and PROGRAM.session.context.transport.nccl is None:
        print(PROGRAM.session.context.transport.why, file=sys.stderr)
        return None
    w = theano.shared(np.ones(nbytes // 4, "float32"), "w")
    touch = synk.function([], (w[:1], None))
    touch()
    return median_seconds(lambda: synk.all_reduce(w, "sum", nccl=nccl), w.container.storage[0].sync, repeats)


def copy(device, nbytes, repeats):
    """Time a copy within the device's memory."""
    import numpy as np
    import pygpu

    context = pygpu.init(device)
    a = pygpu.array(np.ones(nbytes // 4, "float32"), context=context)
    b = a.copy()

    def call():
        b[...] = a

    return median_seconds(call, b.sync, repeats)


def in_a_process(kind, *arguments):
    """Return the output of a measurement, or its error if it fails."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([kind, *arguments])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        cwd=str(ROOT),
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return {"seconds": json.loads(done.stdout.splitlines()[-1])}


def resnet(device, n_ranks, batches, depth):
    """Run the ResNet demo, with plain Theano on the same device for comparison; return its status and output."""
    program = [sys.executable, "-m", "synkhronos", str(ROOT / "demos/resnet/train_resnet.py"), "--no-progress"]
    done = subprocess.run(
        program + ["--depth", str(depth), "--batches", str(batches), "--devices"] + [device] * n_ranks,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        cwd=str(ROOT),
    )
    return {"status": done.returncode, "output": done.stdout[-4000:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda0")
    parser.add_argument("--out", default="times.json")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks on the device")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="sizes of all_reduce, in bytes")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--resnet-batches", type=int, default=20, help="number of batches of ResNet-50; 0 skips it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, *arguments = json.loads(options.one)
        print(json.dumps({"step": step, "reduction": reduction, "copy": copy}[kind](*arguments)))
        return
    device, repeats = options.device, options.repeats
    found = {
        "device": device,
        "date": time.strftime("%Y-%m-%d"),
        "batch": options.batch,
        "steps": {},
        "copies": {},
        "reductions": {},
        "resnet": {},
    }
    try:
        found["driver"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            universal_newlines=True,
        ).stdout.strip()
    except OSError:
        found["driver"] = "no nvidia-smi"

    def note(place, key, value):
        found[place][key] = value
        print(place, key, value, flush=True)
        Path(options.out).write_text(json.dumps(found, indent=1))

    for n_ranks in [0] + options.ranks:
        note("steps", str(n_ranks), in_a_process("step", device, n_ranks, options.batch, repeats))
    for nbytes in options.sizes:
        note("copies", str(nbytes), in_a_process("copy", device, nbytes, repeats))
        for n_ranks in options.ranks:
            for nccl in (True, False):
                note(
                    "reductions",
                    f"{nbytes} {n_ranks} {('nccl' if nccl else 'host')}",
                    in_a_process("reduction", device, n_ranks, nbytes, nccl, repeats),
                )
    if options.resnet_batches:
        for n_ranks in options.ranks[:2]:
            note("resnet", str(n_ranks), resnet(device, n_ranks, options.resnet_batches, 50))


if __name__ == "__main__":
    main()
