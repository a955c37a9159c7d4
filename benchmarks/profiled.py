"""What it costs to be profiled: a span, a call with it, and a call of a session without it."""

import json
import os
import tempfile
import time

import numpy as np

import synkhronos as synk
from synkhronos import trace
from synkhronos.profiling import ring
from synkhronos.profiling.recording import Recording

from .library import T


def run(groups, n=2, repeats=2000, rounds=5):
    """Measure; yield a row per case."""
    yield {"case": "profile: microseconds of a span in a loop", "n": 1, "value": 1e6 * span_seconds(50 * repeats)}
    x = T.fmatrix("x")
    f = synk.function([x], (x.sum(), "sum"), name="sum")
    # With one rank nothing is at the same time: what a call takes longer is what its spans take.
    before, on, _, spans = calls(f, 1, repeats, rounds)
    yield {"case": "profile: microseconds of a span in a call", "n": 1, "value": 1e6 * (on - before) / spans}
    before, on, after, _ = calls(f, n, repeats, rounds)
    yield {"case": "profile: a call with it, to one without", "n": n, "value": on / before}
    yield {"case": "profile: a call after it, to one before", "n": n, "value": after / before}


def span_seconds(repeats):
    """Return what a method takes longer for being recorded."""

    class Thing:
        @trace.point("barrier")
        def do(self):
            pass

    thing = Thing()
    plain = loop_seconds(thing, repeats)
    recording = Recording()
    recording.add(0, memoryview(bytearray(ring.ring_bytes(1))), any_thread=True)
    try:
        recorded = loop_seconds(thing, repeats)
    finally:
        recording.remove(0)
        trace.POINTS.remove(trace.Point("barrier", Thing, "do"))
    return recorded - plain


def loop_seconds(thing, repeats):
    """Return the least time of a call, of ten loops."""
    found = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(repeats // 10):
            thing.do()
        found.append((time.perf_counter() - began) / (repeats // 10))
    return min(found)


def calls(f, n, repeats, rounds):
    """Return the median seconds of a call before, in and after sessions that are recorded; and the spans of one."""
    before, on, after, spans = [], [], [], []
    for _ in range(rounds):  # in turn: what else the machine does is the same for all
        before.append(call_seconds(f, n, None, repeats))
        with tempfile.TemporaryDirectory() as folder:
            on.append(call_seconds(f, n, folder, repeats))
            spans.append(spans_of_master(folder) / repeats)
        after.append(call_seconds(f, n, None, repeats))
    return [np.median(values) for values in (before, on, after, spans)]


def call_seconds(f, n, folder, repeats):
    """Return the median time of a call in a session of its own."""
    synk.fork(n, use_gpu=False, profile=folder)
    try:
        data = synk.data(np.ones((128, 4), "float32"))
        f(data)
        found = []
        for _ in range(repeats):
            began = time.perf_counter()
            f(data)
            found.append(time.perf_counter() - began)
        return np.median(found)
    finally:
        synk.close()


def spans_of_master(folder):
    """Return how many there are; few of them are not of calls."""
    with open(os.path.join(folder, "timeline.json")) as file:
        return len([event for event in json.load(file)["traceEvents"] if event["ph"] == "X" and event["pid"] == 0])
