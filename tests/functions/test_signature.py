"""What a user gives to `function`, taken apart."""

from collections import OrderedDict

import pytest

from synkhronos.functions import signature as spec
from synkhronos.reductions import MISSING, ReduceOp

A, B, C = "variable a", 2.5, object()  # anything may stand for a variable


@pytest.mark.parametrize(
    "outputs,variables,ops,keys,single",
    [
        (None, None, [], None, False),
        ([], [], [], None, False),
        (C, C, [MISSING], None, True),
        ((C, "sum"), C, ["sum"], None, True),
        ((C, None), C, [None], None, True),
        ((C, ReduceOp("max")), C, [ReduceOp("max")], None, True),
        ([C], [C], [MISSING], None, False),
        ([C, (B, "max"), (C, None)], [C, B, C], [MISSING, "max", None], None, False),
        ((C, B), [C, B], [MISSING, MISSING], None, False),
        ((C, B, (C, "min")), [C, B, C], [MISSING, MISSING, "min"], None, False),
        ((C,), [C], [MISSING], None, False),
        (((C, "sum"), (B, "max")), [C, B], ["sum", "max"], None, False),
        ({"b": C, "a": (B, "sum")}, {"a": B, "b": C}, ["sum", MISSING], ["a", "b"], False),
        (OrderedDict([("z", C), ("y", B)]), {"y": B, "z": C}, [MISSING, MISSING], ["y", "z"], False),
        ({}, {}, [], [], False),
    ],
)
def test_outputs_of_every_form(outputs, variables, ops, keys, single):
    parsed = spec.parse_outputs(outputs)
    assert (parsed.variables, parsed.ops) == (variables, ops)
    assert (parsed.form.keys, parsed.form.single) == (keys, single)


@pytest.mark.parametrize(
    "outputs,message",
    [
        ({1: C}, "keys of a dict must be strings, got 1"),
        ([C, (C, "sum", 3)], r"outputs\[1\] must be a variable or \(variable, op\), got \("),
        ([C, ()], r"outputs\[1\] must be"),
        ({"a": (C,)}, r"outputs\['a'\] must be"),
    ],
)
def test_outputs_that_are_none(outputs, message):
    with pytest.raises(TypeError, match=message):
        spec.parse_outputs(outputs)


@pytest.mark.parametrize(
    "form,subset,wrapped",
    [
        (spec.Form(), None, [10, 20]),
        (spec.Form(), [1], [20]),
        (spec.Form(single=True), None, 10),
        (spec.Form(single=True), [0], [10]),
        (spec.Form(["a", "b"]), None, {"a": 10, "b": 20}),
        (spec.Form(["a", "b"]), [1], {"b": 20}),
        (spec.Form(["a", "b"]), [], {}),
    ],
)
def test_results_in_the_form_of_the_outputs(form, subset, wrapped):
    results = [10, 20] if subset is None else [[10, 20][i] for i in subset]
    assert form.wrap(results, subset) == wrapped


@pytest.mark.parametrize(
    "updates,pairs,ops",
    [
        (None, [], []),
        ([], [], []),
        ([(A, C)], [(A, C)], [MISSING]),
        (((A, C), [B, C, "sum"]), [(A, C), (B, C)], [MISSING, "sum"]),
        ({A: C, B: (C, "max")}, [(A, C), (B, C)], [MISSING, "max"]),
        (OrderedDict([(B, C), (A, C)]), [(B, C), (A, C)], [MISSING, MISSING]),
    ],
)
def test_updates_of_every_form(updates, pairs, ops):
    assert spec.parse_updates(updates, str) == (pairs, ops)


@pytest.mark.parametrize(
    "updates,error,message",
    [
        (3, TypeError, "updates must be a dict or a list of .*, got int"),
        ([C], TypeError, r"updates\[0\] must be \(shared, expression\) or \(shared, expression, op\), got <object"),
        ([(A, C), (A,)], TypeError, r"updates\[1\] must be"),
        ([(A, C, "sum", 1)], TypeError, r"updates\[0\] must be"),
        ([(A, C), (A, B)], ValueError, r"updates\[1\]: variable a is updated twice"),
    ],
)
def test_updates_that_are_none(updates, error, message):
    with pytest.raises(error, match=message):
        spec.parse_updates(updates, str)


@pytest.mark.parametrize(
    "subset,keys,positions",
    [
        (None, None, None),
        (None, ["a"], None),
        ([], None, []),
        ([2, 0], None, [2, 0]),
        ((1, 1), None, [1, 1]),
        (["b"], ["a", "b", "c"], [1]),
        (("c", "a"), ["a", "b", "c"], [2, 0]),
    ],
)
def test_output_subset(subset, keys, positions):
    assert spec.output_indices(subset, keys, 3) == positions


@pytest.mark.parametrize(
    "subset,keys,error,message",
    [
        ([3], None, ValueError, "output_subset names 3, but the outputs are 0, 1, 2"),
        ([0, -1], None, ValueError, "output_subset names -1"),
        ([True], None, ValueError, "output_subset names True"),
        (["a"], None, ValueError, "output_subset names 'a', but the outputs are 0, 1, 2"),
        ([1.0], None, ValueError, "output_subset names 1.0"),
        ([[1]], None, ValueError, r"output_subset names \[1\]"),
        ([0], ["a", "b", "c"], ValueError, "output_subset names 0, but the outputs are 'a', 'b', 'c'"),
        (1, None, TypeError, "output_subset must be a list of positions, got int"),
        ("a", ["a", "b", "c"], TypeError, "output_subset must be a list of keys, got str"),
    ],
)
def test_output_subsets_that_are_none(subset, keys, error, message):
    with pytest.raises(error, match=message):
        spec.output_indices(subset, keys, 3)


def test_output_subset_of_no_outputs():
    with pytest.raises(ValueError, match="output_subset names 0, but the outputs are none"):
        spec.output_indices([0], None, 0)
