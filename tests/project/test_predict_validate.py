"""Measured points for judging predictions, and the verdicts."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def tool(name):
    """Return a module of tools/."""
    spec = importlib.util.spec_from_file_location(name, str(TOOLS / f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


points = tool("predict_points")
validate = tool("predict_validate")


def test_no_point_is_in_both_halves():
    assert not set(points.FITTED) & set(points.TESTED)
    assert Counter(points.FITTED + points.TESTED).most_common(1)[0][1] == 1
    names = [validate.key(point) for point in points.FITTED + points.TESTED]
    assert len(set(names)) == len(names)


def test_what_the_points_are():
    assert len(points.TESTED) >= 30
    assert {point.program for point in points.TESTED} == {"mlp", "cnn", "resnet20", "lstm", "sequences", "uneven"}
    assert {point.program for point in points.FITTED} == {point.program for point in points.TESTED}
    for program in {point.program for point in points.TESTED}:
        assert {1, 2, 3, 4} <= {point.ranks for point in points.TESTED if point.program == program}
        assert {1, 2} == {point.ranks for point in points.FITTED if point.program == program}
    assert len([point for point in points.TESTED if point.hosts > 1]) >= 5


def test_profiles_are_of_fitted_points_alone():
    """No session with a profile measures a tested point."""
    measured = []
    for program, hosts, rate, sessions, of_process in validate.sessions():
        measured += of_process
        for session in sessions:
            for rows in session["rows"]:
                point = points.Point(program, session["ranks"], rows, hosts, rate)
                assert (point in points.FITTED) == (session["profile"] is not None)
    assert sorted(measured) == sorted(points.FITTED + points.TESTED)


def outcome(program, measured, **parts):
    return validate.Outcome(points.Point(program, 2, 100), measured, parts)


@pytest.mark.parametrize(
    "found, left_out, expected",
    [
        ([(1.0, 1.1), (1.0, 0.9), (1.0, 1.4)], None, (0.1, 0.4, 0.1, True)),
        ([(1.0, 1.0), (1.0, 1.0), (1.0, 1.41)], None, (0.0, 0.41, 0.0, False)),
        ([(1.0, 1.16), (1.0, 1.16), (1.0, 1.0)], None, (0.16, 0.16, 0.16, False)),
        ([(1.0, 1.0), (2.0, 2.0)], "waiting", (0.375, 0.5, 0.375, False)),
    ],
)
def test_bounds(found, left_out, expected):
    some = [outcome("mlp", measured, computing=total - 0.5, waiting=0.5) for measured, total in found]
    got = validate.bounds(some, left_out)
    assert got[:3] == pytest.approx(expected[:3])
    assert got[3] == expected[3]


def test_one_program_may_not_hide_behind_others():
    some = [outcome("mlp", 1.0, computing=1.0) for _ in range(9)]
    assert validate.bounds(some)[3]
    worse = some + [outcome("lstm", 1.0, computing=1.2)]
    assert validate.bounds(worse) == (pytest.approx(0), pytest.approx(0.2), pytest.approx(0.2), False)


def test_document():
    """The document has a verdict on each model and a line for each point."""
    parts = dict.fromkeys(["computing", *validate.LOSSES], 0.0)
    parts.update(computing=0.4, communicating=0.3, waiting=0.3)
    some = [validate.Outcome(points.Point("mlp", 2, 100), 1.0, parts)]
    text = validate.document(some, "Quiet.")
    assert "| ours | 0.0 % | 0.0 % | 0.0 % | met |" in text
    assert "| without communication | 30.0 % | 30.0 % | 30.0 % | missed, as expected |" in text
    assert "| mlp | 2 | 100 | 1 | 1000 | 1000 | +0 % | 400 | 0 | 0 | 300 | 300 | 0 | 0 |" in text


def test_published_figures():
    """Predictions equal manual calculations: a ring transfers 1.75 * 4 bytes per parameter, at 20 or 8 GB/s."""
    paper = tool("predict_paper")
    eight = paper.of_the_paper()[-2].split("|")
    steps = 395.1 * 1.75
    all_reduce = (1.75 * 4 * 25.6e6 / 20e9 + 14e-5) * steps / 8
    assert float(eight[4]) == pytest.approx(all_reduce, abs=0.01)
    assert float(eight[5]) == pytest.approx(395.1 / (395.1 / 8 + all_reduce), abs=0.01)
    alexnet = paper.of_theano_mpi()[2]
    assert "2.56 + 0.27" in alexnet  # 20.5 / 8, and 5 steps of 1.75 * 244 MB
