"""Profiles of ranks that share a device: what is recorded nests, and adds up to the time."""

import time

import numpy as np
import pytest
import theano
from theano import tensor as T
from timelines import check_nested, covered, lanes, read
from worlds import DEVICE

import synkhronos as synk

N_CALLS = 5


def test_spans_nest_and_add_up_to_the_time(tmp_path):
    w, x = theano.shared(np.full((400, 400), 0.01, "float32"), "w"), T.fmatrix("x")
    f = synk.function([x], T.dot(T.dot(x, w), w).mean(), updates=[(w, w * 0.5)], name="f")
    assert synk.fork(devices=[DEVICE] * 2, profile=str(tmp_path / "p")) == 2
    rows = np.ones((4000, 400), "float32")
    f(rows)  # the first calls also import and build
    synk.all_reduce(w)
    begun = time.monotonic()
    for _ in range(N_CALLS):
        f(rows)
        synk.all_reduce(w)
    made = time.monotonic() - begun
    synk.close()
    profile, timeline = read(tmp_path / "p")
    assert profile["devices"] == [DEVICE] * 2
    calls, reduced = [
        next(each for each in profile["commands"] if each["name"] == name) for name in ("f", "all_reduce")
    ]
    assert (calls["count"], reduced["count"], reduced["bytes"]) == (N_CALLS + 1, N_CALLS + 1, 4 * 400 * 400)
    of_calls = [call["master_s"] for call in calls["calls"][1:] + reduced["calls"][1:]]
    assert sum(of_calls) == pytest.approx(made, rel=0.02, abs=0.02)
    for rank, lane in enumerate(lanes(timeline, profile)):
        check_nested(lane)
        of = {point: [event for _, _, event in lane if event["cat"] == point] for point in ("engine", "transport")}
        assert len(of["engine"]) == N_CALLS + 1 and len(of["transport"]) > N_CALLS
        if rank != profile["root"]:
            total, there = covered(lane)
            assert total == pytest.approx(there, rel=0.02)
        assert sum(profile["shares"][rank].values()) == pytest.approx(profile["wall_s"], rel=0.02)
        assert calls["totals"]["engine_s"][rank] > 0 and reduced["totals"]["transport_s"][rank] > 0
