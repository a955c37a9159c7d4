"""Parsing of the arguments of `function`."""

from collections import OrderedDict

import pytest
from refusals import refuses

from synkhronos.calls import signature as spec
from synkhronos.reductions import MISSING, ReduceOp

A, B, C = "variable a", 2.5, object()  # any object may serve as a variable


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
    "outputs,argument,expected,got",
    [
        ({1: C}, "outputs", "keys", "1"),
        ([C, (C, "sum", 3)], "outputs[1]", "(variable, op)", ", 'sum', 3)"),
        ([C, ()], "outputs[1]", "(variable, op)", "()"),
        ({"a": (C,)}, "outputs['a']", "(variable, op)", ",)"),
    ],
)
def test_outputs_that_are_none(outputs, argument, expected, got):
    with refuses(TypeError, argument, expected, got):
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
        ({A: C, B: C}.items(), [(A, C), (B, C)], [MISSING, MISSING]),  # as passed by Keras
        (OrderedDict([(B, C)]).items(), [(B, C)], [MISSING]),
    ],
)
def test_updates_of_every_form(updates, pairs, ops):
    assert spec.parse_updates(updates, str) == (pairs, ops)


@pytest.mark.parametrize(
    "updates,error,argument,got",
    [
        (3, TypeError, "updates", "int"),
        ([C], TypeError, "updates[0]", "<object"),
        ([(A, C), (A,)], TypeError, "updates[1]", ",)"),
        ([(A, C, "sum", 1)], TypeError, "updates[0]", ", 'sum', 1)"),
        ([(A, C), (A, B)], ValueError, "updates[1]", "variable a, which is listed twice"),
    ],
)
def test_updates_that_are_none(updates, error, argument, got):
    with refuses(error, argument, got=got):
        spec.parse_updates(updates, str)


@pytest.mark.parametrize(
    "subset,keys,positions",
    [
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
    "subset,keys,error,expected,got",
    [
        ([3], None, ValueError, "some of 0, 1, 2", "3"),
        ([0, -1], None, ValueError, "some of 0, 1, 2", "-1"),
        ([True], None, ValueError, "some of 0, 1, 2", "True"),
        (["a"], None, ValueError, "some of 0, 1, 2", "'a'"),
        ([1.0], None, ValueError, "some of 0, 1, 2", "1.0"),
        ([[1]], None, ValueError, "some of 0, 1, 2", "[1]"),
        ([0], ["a", "b", "c"], ValueError, "some of 'a', 'b', 'c'", "0"),
        (1, None, TypeError, "a list of positions", "int"),
        ("a", ["a", "b", "c"], TypeError, "a list of keys", "str"),
    ],
)
def test_output_subsets_that_are_none(subset, keys, error, expected, got):
    with refuses(error, "output_subset", expected, got):
        spec.output_indices(subset, keys, 3)


def test_output_subset_of_no_outputs():
    with refuses(ValueError, "output_subset", "none", "0"):
        spec.output_indices([0], None, 0)
