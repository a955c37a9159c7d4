"""What it costs to be profiled: a span, a call with it, and a call of a session without it."""

import shutil
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
    yield {"case": "profile: microseconds of a span", "n": 1, "value": 1e6 * span_seconds(50 * repeats)}
    x = T.fmatrix("x")
    f = synk.function([x], (x.sum(), "sum"), name="sum")
    seconds = {"before": [], "on": [], "after": []}
    for _ in range(rounds):  # in turn: what else the machine does is the same for all
        for when, is_on in (("before", False), ("on", True), ("after", False)):
            seconds[when].append(call_seconds(f, n, is_on, repeats))
    before, on, after = (np.median(seconds[when]) for when in ("before", "on", "after"))
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


def call_seconds(f, n, is_on, repeats):
    """Return the median time of a call in a session of its own."""
    folder = tempfile.mkdtemp()
    synk.fork(n, use_gpu=False, profile=folder if is_on else None)
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
        shutil.rmtree(folder)
