"""Benchmark of training the demos' networks and an LSTM on all ranks, compared with plain Theano on one thread."""

import functools

import numpy as np

import synkhronos as synk

from . import demo_networks
from .at_once import APART, CEILING, AtOnce
from .contenders import IN_STEPS, PLAIN
from .lstm import lstm
from .measure import Local, WrongResult, measure_in_turn
from .peers.group import DDP, KINDS
from .training import Apart, InSteps, Parallel, Plain

#: Models of demos/lasagne_mnist to measure.
MODELS = ("mlp", "cnn")


def run(
    groups,
    n=2,
    models=MODELS,
    epochs=10,
    digits=None,
    depth=20,
    steps=5,
    recurrent=True,
):
    """Yield, for each network, a row with times, a row with PyTorch DDP's speedup if measured, and a row with parts.

    Parameters
    ----------
    groups : Groups
        Groups of peers.
    n : int
        Number of ranks.
    models, epochs, digits
        Models of demos/lasagne_mnist, number of epochs of each, number of digits (all by default).
    depth, steps : int
        Depth of the residual network (None: not measured), and number of its steps, repeated half as often as epochs.
    recurrent : bool
        Whether to measure an LSTM as well.
    """
    for model in models:
        make = functools.partial(demo_networks.mnist, model, digits)
        yield from trained(f"epoch of MNIST, {model}", n, make, epochs, groups, model, exact=True)
    if recurrent:
        yield from trained("epoch of MNIST, LSTM", n, functools.partial(lstm, rows=digits), max(2, epochs // 2))
    if depth is not None:
        yield from trained(
            f"{steps} steps of ResNet-{depth}",
            n,
            functools.partial(demo_networks.resnet, depth, steps),
            max(2, epochs // 2),
        )


def trained(case, n, make, repeats, groups=None, model=None, exact=False):
    """Yield a network's result rows: the times of all contenders, PyTorch DDP's speedup, and the parts of a step.

    With ``exact``, the function in `steps` is exact, and ranks divide its update; otherwise, it averages gradients.
    """
    with demo_networks.single_precision():
        ours, in_steps, plain, apart = Parallel(make), InSteps(make, exact=exact), Plain(make), Apart(make)
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
            in_steps.share()
            contenders = {
                "synkhronos": Local(ours.epoch, before=ours.begin),
                IN_STEPS: Local(in_steps.epoch, before=in_steps.begin),
                PLAIN: Local(plain.epoch, before=plain.begin),
                CEILING: at_once.contender(CEILING),
                APART: at_once.contender(APART),
            }
            if model is not None:
                contenders.update(groups.contenders(DDP, n, model))
                contenders.update(
                    (f"{name}, alone", each) for name, each in groups.contenders(["ddp"], n, model + " alone").items()
                )
            times = measure_in_turn(contenders, repeats, rounds=repeats, warm=0)
        finally:
            synk.close()
    for program in (ours, in_steps):
        difference = abs(np.mean(program.losses) / np.mean(plain.losses) - 1)
        if len(program.losses) != len(plain.losses) or not difference <= program.task.tolerance:
            found, expected = np.mean(program.losses), np.mean(plain.losses)
            raise WrongResult(f"{case}: expected plain Theano's mean loss {expected:g}, got {found:g}")
    yield {"case": case, "n": n, "times": times}
    best = min((times[KINDS[kind].name].median for kind in DDP if KINDS[kind].name in times), default=None)
    if best:
        theirs = times["PyTorch DDP, alone"].median / best
        yield {
            "case": f"speedup of PyTorch DDP, {case}",
            "n": n,
            "value": theirs,
            "of": times[PLAIN].median / times[IN_STEPS].median,
        }
    yield {
        "case": "time of a step by part, " + case.split(" of ")[1],
        "n": n,
        "parts": {"synkhronos": ours.parts(), PLAIN: plain.parts()},
    }
