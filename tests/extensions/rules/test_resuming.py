"""Every rule resumes from `extensions.checkpoint`: bit for bit on as many ranks, on other numbers as documented."""

import logging

import numpy as np
import pytest
from descent import A, B, Training
from refusals import refuses

import synkhronos as synk
from synkhronos.extensions import checkpoint, rules

pytestmark = pytest.mark.slow


def groups(n):
    return [list(range(0, n, 2)), list(range(1, n, 2))] if n > 1 else [[0]]


KINDS = {
    "LocalSGD": lambda f, w, m: rules.LocalSGD(f, w, m, every=3),
    "LocalSGD in groups": lambda f, w, m: rules.LocalSGD(f, w, m, every=3, groups=groups(synk.size())),
    "LocalSGD in 16 bits": lambda f, w, m: rules.LocalSGD(f, w, m, every=3, exchange="float16"),
    "EASGD": lambda f, w, m: rules.EASGD(f, w, m, every=3),
    "EASGD in 16 bits": lambda f, w, m: rules.EASGD(f, w, m, every=3, exchange="bfloat16"),
    "DiLoCo": lambda f, w, m: rules.DiLoCo(f, w, m, every=3),
    "DiLoCo later": lambda f, w, m: rules.DiLoCo(f, w, m, every=4, delay=3),
    "DiLoCo later, pulled": lambda f, w, m: rules.DiLoCo(
        f, w, m, every=4, delay=2, merge="pull", mix=0.5, exchange="bfloat16"
    ),
    "SlowMo": lambda f, w, m: rules.SlowMo(f, w, m, every=3),
    "ASGD": lambda f, w, m: rules.ASGD(f, w, m, every=3),
    "Gossip": lambda f, w, m: rules.Gossip(f, w, m, probability=0.4),
    "Swap": lambda f, w, m: rules.Swap(f, w, m, every=3),
    "DASO": lambda f, w, m: rules.DASO(f, w, m, groups=groups(synk.size()), warm_up=1, patience=0),
    "DASO in 16 bits": lambda f, w, m: rules.DASO(
        f, w, m, groups=groups(synk.size()), warm_up=0, merge="daso", exchange="bfloat16"
    ),
}


def made(make_world, name, n=3):
    world = make_world("threads", n, n - 1)
    training = Training(world)
    return world, training, KINDS[name](training.function, [training.w], [training.m])


def run(training, rule, first, last):
    batches = training.batches(24, seed=5)
    for t in range(first, last):
        training.function(A[batches[t]], B[batches[t]])
        rule()
        if t % 7 == 6 and isinstance(rule, rules.DASO):
            rule.epoch(1.0)


def end(rule):
    if not isinstance(rule, rules.Swap):
        rule.finish()


@pytest.mark.thorough("-[059]$")
@pytest.mark.parametrize("stop", [0, 5, 9, 10, 11])
@pytest.mark.parametrize("name", KINDS)
def test_to_the_bit(make_world, tmp_path, name, stop):
    """Runs resume with or without a pending mean, in mid-round or mid-epoch, in a rule at another point."""
    path = str(tmp_path / "model.npz")
    world, training, rule = made(make_world, name)
    run(training, rule, 0, stop)
    checkpoint.save(path, [training.w, training.m], rule, t=stop)
    run(training, rule, stop, 24)
    expected, counters = [value.tobytes() for value in world.values(training.w)], rule.counters
    end(rule)
    world, training, rule = made(make_world, name)
    run(training, rule, 3, 6)
    if isinstance(rule, rules.DASO):
        rule.epoch(2.0)
    assert checkpoint.load(path, [training.w, training.m], rule)["t"] == stop
    run(training, rule, stop, 24)
    assert [value.tobytes() for value in world.values(training.w)] == expected
    assert rule.counters == counters
    end(rule)


@pytest.mark.thorough("-[14]$")
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("name", KINDS)
def test_on_another_number_of_ranks(make_world, tmp_path, caplog, name, n):
    """On other numbers of ranks, local values become their mean; common values, counts and phases are restored."""
    path = str(tmp_path / "model.npz")
    world, training, rule = made(make_world, name)
    run(training, rule, 0, 10)
    checkpoint.save(path, [training.w, training.m], rule)
    mean = np.mean(world.values(training.w), axis=0)
    centres = [world.values(each)[0] for each in getattr(rule, "centre", [])]
    counters = rule.counters
    end(rule)
    world, training, rule = made(make_world, name, n)
    with caplog.at_level(logging.INFO, "synkhronos"):
        checkpoint.load(path, [training.w, training.m], rule)
    assert f"is converted from n_ranks=3 to n_ranks={n}: ['w'" in caplog.text
    np.testing.assert_allclose(world.values(training.w), [mean] * n, rtol=1e-15)
    for each, value in zip(getattr(rule, "centre", []), centres):
        assert all(np.array_equal(found, value) for found in world.values(each))
    now = rule.counters
    assert [now[key] for key in ("steps", "exchanges")] == [counters[key] for key in ("steps", "exchanges")]
    assert now["rows"] == [0.0] * n and now.get("phases") == counters.get("phases")
    assert now.get("alphas", [1 / n]) == [1 / n] * len(now.get("alphas", [0]))
    run(training, rule, 10, 24)
    end(rule)
    assert np.isfinite(world.values(training.w)).all()


def test_files_of_other_rules_change_nothing(make_world, tmp_path):
    path = str(tmp_path / "model.npz")
    world, training, rule = made(make_world, "LocalSGD")
    run(training, rule, 0, 4)
    checkpoint.save(path, [training.w, training.m], rule)
    for name in ("Gossip", "EASGD", "Swap"):
        world, training, rule = made(make_world, name)
        before, counters = world.values(training.w), rule.counters
        with refuses(ValueError, "rule", "LocalSGD", name):
            checkpoint.load(path, [training.w, training.m], rule)
        np.testing.assert_array_equal(world.values(training.w), before)
        assert rule.counters == counters


def test_what_is_no_checkpoint(make_world, tmp_path):
    world, training, rule = made(make_world, "LocalSGD")
    path = str(tmp_path / "model.npz")
    np.savez(path, np.zeros(4))
    with refuses(ValueError, "path", got=path):
        checkpoint.load(path, [training.w], rule)
    with refuses(TypeError, "config", got="{'a': 1}"):
        checkpoint.save(path, [training.w], rule, config={"a": 1})
    checkpoint.save(path, [training.w], rule, text="abc", values=[1, 2.5], flag=True)
    assert {key: value.tolist() for key, value in checkpoint.load(path, [training.w], rule).items()} == {
        "text": "abc",
        "values": [1, 2.5],
        "flag": True,
    }
