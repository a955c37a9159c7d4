"""Benchmark of the cost of profiling: of a span, of a call in a profiled session, and of a call in a later session."""

import json
import os
import tempfile
import time

import numpy as np

import synkhronos as synk
from synkhronos import trace
from synkhronos.profile import ring
from synkhronos.profile.recording import Recording

from .library import T


def run(groups, n=2, repeats=2000, rounds=5):
    """Yield the result rows of the cost of a profile."""
    yield {"case": "profile: microseconds of a span in a loop", "n": 1, "value": 1e6 * span_seconds(50 * repeats)}
    x = T.fmatrix("x")
    f = synk.function([x], (x.sum(), "sum"), name="sum")
    # With one rank, nothing runs in parallel, so the additional time of a call is the time of its spans.
    before, on, _, spans = calls(f, 1, repeats, rounds)
    yield {"case": "profile: microseconds of a span in a call", "n": 1, "value": 1e6 * (on - before) / spans}
    before, on, after, _ = calls(f, n, repeats, rounds)
    yield {"case": "profile: call with a profile, relative to one without", "n": n, "value": on / before}
    yield {"case": "profile: call after a profile, relative to one before", "n": n, "value": after / before}


def span_seconds(repeats):
    """Return the time that recording adds to a method call."""

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
    """Return the mean time of a call in the fastest of ten loops."""
    found = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(repeats // 10):
            thing.do()
        found.append((time.perf_counter() - began) / (repeats // 10))
    return min(found)


def calls(f, n, repeats, rounds):
    """Return the median seconds of a call before, during and after recorded sessions, and the median spans per call."""
    before, on, after, spans = [], [], [], []
    for _ in range(rounds):  # alternating, so that other load on the machine affects all equally
        before.append(call_seconds(f, n, None, repeats))
        with tempfile.TemporaryDirectory() as folder:
            on.append(call_seconds(f, n, folder, repeats))
            spans.append(spans_of_master(folder) / repeats)
        after.append(call_seconds(f, n, None, repeats))
    return [np.median(values) for values in (before, on, after, spans)]


def call_seconds(f, n, folder, repeats):
    """Return the median time of a call in a new session."""
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
    """Return the number of the master's spans; nearly all of them belong to calls."""
    with open(os.path.join(folder, "timeline.json")) as file:
        return len([event for event in json.load(file)["traceEvents"] if event["ph"] == "X" and event["pid"] == 0])
