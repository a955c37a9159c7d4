"""Many steps as several commands: how the steps are divided, and how the results are joined."""

from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refuses

from synkhronos.calls import steps as steps_module
from synkhronos.calls.rank_steps import StepSequence
from synkhronos.calls.steps import Results, joined, run_in_chunks


def steps_of(n_steps, total=False):
    """Return steps with two divisions, the second one in every third step, and their table."""
    table = np.zeros((n_steps, 4), np.int64)
    table[::3, 0] = 1
    counts = np.bincount(table[:, 0], minlength=2).tolist()
    plans = [SimpleNamespace(), SimpleNamespace()]
    return StepSequence(plans, counts, [1, 0], None, None, None, True, [], [], total=total), table


class Made:
    """Callable that makes steps and records them; its outputs are numbers, rows, and a list."""

    def __init__(self, table, end=None):
        self.table, self.end, self.parts = table, end, []

    def __call__(self, steps):
        n_steps, begin = sum(steps.counts), steps.begin
        assert steps.counts == np.bincount(self.table[begin : begin + n_steps, 0], minlength=2).tolist()
        has_ended = self.end is not None and begin + n_steps > self.end
        if has_ended:
            n_steps = self.end + 1 - begin
        self.parts.append((begin, n_steps))
        numbers = np.arange(begin, begin + n_steps, dtype=float)
        return Results(
            [numbers, np.stack([numbers, -numbers], 1), [np.full(1 + int(i) % 2, i) for i in numbers]],
            [n_steps, 2 * n_steps],
            n_steps,
            has_ended,
        )


@pytest.mark.parametrize("n_steps", [0, 1, 16, 17, 100, 1000])
def test_all_steps_are_made_once_and_in_order(n_steps):
    steps, table = steps_of(n_steps)
    made = Made(table)
    (numbers, rows, odd), of_ranks, n_made, has_ended = run_in_chunks(steps, table, made)
    np.testing.assert_array_equal(numbers, np.arange(n_steps))
    np.testing.assert_array_equal(rows, np.stack([np.arange(n_steps), -np.arange(n_steps)], 1))
    assert [len(each) for each in odd] == [1 + i % 2 for i in range(n_steps)]
    assert (of_ranks, n_made, has_ended) == ([n_steps, 2 * n_steps], n_steps, False)
    assert [begin for begin, _ in made.parts] == [0, *np.cumsum([count for _, count in made.parts])[:-1]]
    assert len(made.parts) == 1 or made.parts[0] == (0, 16)


def test_the_program_ends_them():
    steps, table = steps_of(100)
    for end in (3, 15, 16, 40):  # 15: at the end of the first part
        made = Made(table, end)
        results = run_in_chunks(steps, table, made)
        assert (results.n_steps, results.has_ended) == (end + 1, True)
        np.testing.assert_array_equal(results.outputs[0], np.arange(end + 1))


def test_parts_take_about_a_second(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(steps_module.time, "monotonic", lambda: now[0])
    steps, table = steps_of(1000)
    made = Made(table)

    def run(some):
        now[0] += sum(some.counts) / 128
        return made(some)

    run_in_chunks(steps, table, run)
    assert [count for _, count in made.parts] == [16, 64, *[128] * 7, 24]


def test_what_is_accumulated_is_one_command():
    steps, table = steps_of(100, total=True)
    made = Made(table)
    run_in_chunks(steps, table, made)
    assert made.parts == [(0, 100)]


def test_arrays_of_different_shapes_become_a_list():
    found = joined([np.zeros((2, 3)), np.ones((1, 4))])
    assert [each.shape for each in found] == [(3,), (3,), (4,)]
    found = joined([np.zeros(2), [np.zeros(3)]])
    assert [each.shape for each in found] == [(), (), (3,)]


def test_commands_that_end_early_go_on():
    """If a command ends early because `on_step` changed a variable, the other steps follow, with and without `heal`."""
    steps, table = steps_of(40)
    made = Made(table)

    def run(some):
        ends = [end for end in (3, 4, 20) if some.begin <= end < some.begin + sum(some.counts)]
        part = Made(table, ends[0] if ends else None)
        found = part(some)
        made.parts += part.parts
        return found._replace(has_ended=False)

    for heals in (False, True):
        made.parts = []
        (numbers, _, odd), of_ranks, n_made, has_ended = run_in_chunks(steps, table, run, heals)
        assert numbers.tolist() == list(range(40)) and len(odd) == 40
        assert (of_ranks, n_made, has_ended) == ([40, 80], 40, False)
        assert {4, 5, 21} <= {begin for begin, _ in made.parts}


def test_outputs_that_are_accumulated_need_all_steps_in_one_command():
    steps, table = steps_of(40, total=True)

    def run(some):
        return Made(table, 3)(some)._replace(has_ended=False)

    with refuses(ValueError, "total", "False", "step 3 of 40"):
        run_in_chunks(steps, table, run, False)
