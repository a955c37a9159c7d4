"""Detecting the steps of a profiled program."""

import pytest
from refusals import refuses
from synthetic import Program

from synkhronos.contrib.prediction.profiles import parse
from synkhronos.contrib.prediction.steps import gaps_after, step_of


def profile(**changes):
    return parse(Program().profile(2, 1000, steps=30, **changes), "DIR")


def test_parts():
    step = step_of(profile())
    assert step.main == ("function", "train")
    assert step.rows == 1000
    assert {name: part.per_step for (_, name), part in step.parts.items()} == {"train": 1, "all_reduce": 1, "step": 1}
    train = step.parts["function", "train"]
    assert len(train.rows) == 27  # without the first two calls, which warm up, and the last call
    assert train.work.shape == (27, 2)
    assert train.overhead == pytest.approx([4e-5] * 27)


def test_gaps():
    assert gaps_after(profile()) == pytest.approx(
        {("function", "train"): 1e-4, ("collective", "all_reduce"): 1e-4, ("function", "step"): 1e-4}
    )


def test_commands_outside_the_steps():
    """Commands before the first step or after the last one belong to no step; occasional ones in between do."""
    content = Program().profile(2, 1000, steps=30)
    calls = content["commands"][0]["calls"]
    template = dict(calls[0], rows=None, engine_s=[0.0, 0.0])
    begins = (calls[0]["begin_s"] - 1, calls[10]["begin_s"] + 1e-9, calls[20]["begin_s"] + 1e-9, 1e3)
    content["commands"].append(
        {
            "kind": "collective",
            "name": "broadcast",
            "bytes": 8,
            "count": 4,
            "calls": [dict(template, begin_s=begin, master_s=1e-6) for begin in begins],
        }
    )
    step = step_of(parse(content, "DIR"))
    assert step.parts["collective", "broadcast"].per_step == pytest.approx(2 / 29)


def test_the_most_frequent_number_of_rows():
    content = Program().profile(1, (500, 500, 500, 120), steps=40)
    assert step_of(parse(content, "DIR")).rows == 500


def test_no_repeated_steps():
    content = Program().profile(2, 1000, steps=4)
    with refuses(ValueError, "profile", "5 times", "4"):
        step_of(parse(content, "DIR"))
    content["commands"] = content["commands"][1:2]
    with refuses(ValueError, "profile", "5 times", "no function"):
        step_of(parse(content, "DIR"))
