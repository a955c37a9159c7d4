"""Every benchmark at a tiny size, without the peers; and how results are judged."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import calls, collectives, end_to_end, goals, inputs, measure, report, start  # noqa: E402
from benchmarks.measure import Local, Times, WrongResult  # noqa: E402
from benchmarks.peers.forked import Forked  # noqa: E402
from benchmarks.peers.group import Groups  # noqa: E402

NO_PEERS = Groups(())

TINY = [
    (calls.run, dict(repeats=5, rows=300, pauses=(1e-4,)), "call, no inputs"),
    (collectives.run, dict(sizes=(4096,), most=3, many=[(3, 4), (5,)]), "all_reduce, in slots"),
    (inputs.run, dict(repeats=5, shape=(300, 4), batch=64), "batch of 64 shuffled rows"),
    (end_to_end.run, dict(mlps=[((4, 5, 3), 6)] * 2, repeats=3, models=()), "5 steps of ResNet-8"),
    (start.run, dict(layers=2, width=4, set_bytes=1 << 20, constant_bytes=1 << 20, repeats=2, depth=None),
     "fork and close"),
]


@pytest.mark.parametrize("run, options, case", TINY, ids=lambda value: getattr(value, "__module__", ""))
def test_runs(run, options, case):
    rows = list(run(NO_PEERS, n=2, **options))
    assert case in [row["case"] for row in rows]
    for row in rows:
        assert report.line_of(row)
        assert "value" in row or all(np.isfinite(times.median) for times in row["times"].values())


def test_resnet_50_has_as_many_parameters_as_published():
    shapes = collectives.resnet50_shapes()
    assert len(shapes) == 161
    assert sum(int(np.prod(shape)) for shape in shapes) == 25557032  # without biases before normalisation


def test_a_wrong_result_is_no_time():
    with pytest.raises(WrongResult):
        Local(lambda: None, lambda: False).measure(3)


def test_measured_in_turn():
    order = []
    contenders = {name: Local(lambda name=name: order.append(name)) for name in "ab"}
    times = measure.measure_in_turn(contenders, repeats=6, rounds=3)
    assert [each.count for each in times.values()] == [6, 6]
    assert "".join(order[-12:]) == "aabb" * 3


def times(median, p99=0):
    return Times(median, p99 or median, median, 1)


def test_judged():
    rows = [
        {"case": "call, no inputs", "n": 2, "times": {"synkhronos": times(20, 200), "mp.Barrier pair": times(100, 300)}},
        {"case": "all_reduce, in slots", "n": 2, "nbytes": 1 << 20, "times": {
            "synkhronos": times(30), "Open MPI": times(120), "MPICH": times(100), "memcpy": times(10)}},
        {"case": "MLP gradient, 2 ms of work", "n": 2, "times": {"synkhronos": times(1000), "plain Theano": times(1950)}},
        {"case": "idle ranks, % CPU", "n": 2, "value": 3.0},
    ]
    verdicts = {verdict.goal.what: (round(verdict.ratio, 3), verdict.met) for verdict in goals.judge(rows)}
    assert verdicts == {
        "call, no inputs, p50": (0.2, False), "call, no inputs, p99": (0.667, False),
        "all_reduce in slots, 1 MB": (0.3, True), "all_reduce in slots, 1 MB, beside memcpy": (3.0, False),
        "speedup, MLP gradient, 2 ms of work": (1.95, True), "waiting ranks, % CPU": (3.0, False)}


def test_report(tmp_path):
    rows = [{"case": "all_reduce, in slots", "n": 2, "nbytes": 1 << 20,
             "times": {"synkhronos": times(30), "MPICH": times(100), "memcpy": times(10)}}]
    verdicts = goals.judge(rows)
    report.save(rows, verdicts, "quiet", tmp_path)
    assert '"median": 30' in (tmp_path / "results.json").read_text()
    page = tmp_path / "page.md"
    page.write_text("before\n" + report.BEGIN + "old\n" + report.END + "after\n")
    report.write(report.document(rows, verdicts, "quiet"), tmp_path, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| all_reduce in slots, 1 MB | best peer | 30.0 | 100.0 | 0.30 | ≤ 0.35 | met |" in text


@pytest.mark.parametrize("kind", ["barrier", "pipes"])
def test_peers_that_need_nothing(kind):
    with Groups() as groups:
        group = groups.get(kind, 2)
        for what, nbytes in [("barrier", 0)] + [("all_reduce", 4000), ("send", 4000)] * (kind == "pipes"):
            assert len(group.contender(what, nbytes).measure(3)) == 3
    assert issubclass(getattr(importlib.import_module("benchmarks.peers." + kind), kind.title()), Forked)
