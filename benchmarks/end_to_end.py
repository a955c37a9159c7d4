"""How much faster whole programs are on two ranks than plain Theano on one thread, and where their time goes."""

import functools

import numpy as np

import synkhronos as synk

from . import demo_networks, gradients
from .at_once import APART, CEILING, AtOnce
from .measure import Local, WrongResult, measure_in_turn
from .training import Apart, Parallel, Plain

#: Models of demos/lasagne_mnist, of which an epoch is measured.
MODELS = ("mlp", "cnn")


def run(groups, n=2, mlps=gradients.MLPS, repeats=60, models=MODELS, epochs=10, digits=None, depth=20, steps=5):
    """Measure; yield a row per case, and one that says where the time of its steps went.

    Parameters
    ----------
    groups : Groups
        Not used: the peers are plain Theano, and twice plain Theano.
    n, mlps, repeats
        Ranks; what gradients are measured of, and how often.
    models, epochs, digits
        Models of demos/lasagne_mnist, how many epochs of each, of how many digits (all by default).
    depth, steps : int
        Of which residual network (of none if it is None) so many steps are measured, half as often as epochs.
    """
    yield from gradients.run(n, mlps, repeats)
    lacking = demo_networks.missing()
    if lacking:
        print("without the demos' networks: pip install {}".format(" ".join(lacking)))
        return
    for model in models:
        make = functools.partial(demo_networks.mnist, model, digits)
        yield from trained(f"epoch of MNIST, {model}", n, make, epochs)
    if depth is not None:
        yield from trained(
            f"{steps} steps of ResNet-{depth}",
            n,
            functools.partial(demo_networks.resnet, depth, steps),
            max(2, epochs // 2),
        )


def trained(case, n, make, repeats):
    """Yield the rows of a network: times, and their parts."""
    with demo_networks.single_precision():
        ours, plain, apart = Parallel(make), Plain(make), Apart(make)
    works = []
    for rank in range(n):
        part = slice(rank, None, n)
        works.append(
            {
                name: Local(functools.partial(program.epoch, part), before=functools.partial(program.begin, part))
                for name, program in ((CEILING, plain), (APART, apart))
            }
        )
    with AtOnce(works) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            ours.share()
            times = measure_in_turn(
                {
                    "synkhronos": Local(ours.epoch, before=ours.begin),
                    "plain Theano": Local(plain.epoch, before=plain.begin),
                    CEILING: at_once.contender(CEILING),
                    APART: at_once.contender(APART),
                },
                repeats,
                rounds=repeats,
                warm=0,
            )
        finally:
            synk.close()
    difference = abs(np.mean(ours.losses) / np.mean(plain.losses) - 1)
    if len(ours.losses) != len(plain.losses) or not difference <= ours.task.tolerance:
        raise WrongResult(f"{case}: mean loss {np.mean(ours.losses):g}, plain Theano's {np.mean(plain.losses):g}")
    yield {"case": case, "n": n, "times": times}
    yield {
        "case": "where the time of a step goes, " + case.split(" of ")[1],
        "n": n,
        "parts": {"synkhronos": ours.parts(), "plain Theano": plain.parts()},
    }
