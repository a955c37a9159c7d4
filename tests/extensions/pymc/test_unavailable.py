"""Features that a model with divided rows lacks are refused or reported; all others are PyMC's.

Modules: `wrapping`.
"""

import copy
import logging
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from refusals import refuses, reports

pm = pytest.importorskip("pymc", reason='PyMC is not installed: pip install ".[pymc]"')

import pymc.stats.log_density  # noqa: E402
import pytensor.tensor as pt  # noqa: E402
from arviz_base import dict_to_dataset  # noqa: E402
from pymc.model.fgraph import clone_model  # noqa: E402
from pymc.model.transform import freeze_dims_and_data, freeze_model  # noqa: E402
from pymc.sampling.deterministic import compute_deterministics  # noqa: E402
from pymc_models import BINARY, KINDS, REAL, N, X, assert_same, log_density, marks, points_of  # noqa: E402
from xarray import DataTree  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = marks()

SAMPLING = dict(draws=5, tune=5, chains=1, cores=1, random_seed=3, progressbar=False, compute_convergence_checks=False)


def of_a_function():
    with pm.Model() as model:
        data_parallel(log_density, [X, BINARY], [pm.Normal("beta", shape=3)], name="y")
    return model


def trace_of(model):
    """Return a trace like that of a sampler."""
    draws = {each.name: np.zeros((1, 3, *each.shape.eval())) for each in model.free_RVs}
    return DataTree.from_dict({"posterior": dict_to_dataset(draws)})


@pytest.fixture(params=["model", "function"])
def parallel(request):
    return data_parallel(KINDS["logistic"]()) if request.param == "model" else of_a_function()


#: Requests, as functions of a trace and the model, with the plain call that the refusal names.
ASKED = {
    "log-likelihood": (lambda trace, **kwargs: pm.compute_log_likelihood(trace, **kwargs), "compute_log_likelihood"),
    "log-likelihood by name": (
        lambda trace, **kwargs: pm.compute_log_likelihood(trace, var_names=["y"], **kwargs),
        "compute_log_likelihood",
    ),
    "log density": (
        lambda trace, **kwargs: pymc.stats.log_density.compute_log_density(trace, **kwargs),
        "compute_log_likelihood",
    ),
    "posterior predictive": (pm.sample_posterior_predictive, "sample_posterior_predictive"),
    "posterior predictive by name": (
        lambda trace, **kwargs: pm.sample_posterior_predictive(trace, var_names=["y"], **kwargs),
        "sample_posterior_predictive",
    ),
    "prior predictive by name": (
        lambda trace, **kwargs: pm.sample_prior_predictive(3, var_names=["y"], **kwargs),
        "sample_prior_predictive",
    ),
    "sample": (
        lambda trace, **kwargs: pm.sample(idata_kwargs={"log_likelihood": True}, **SAMPLING, **kwargs),
        "compute_log_likelihood",
    ),
    "sample by name": (
        lambda trace, **kwargs: pm.sample(idata_kwargs={"log_likelihood": ["y"]}, **SAMPLING, **kwargs),
        "compute_log_likelihood",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_needs_the_rows_is_refused(parallel, case):
    ask, call = ASKED[case]
    trace = trace_of(parallel)
    with refuses(ValueError, "model", "the rows of y", "sum", "plain model"):
        ask(trace, model=parallel)
    with parallel, refuses(ValueError, "model", hint=f"pm.{call}("):
        ask(trace)


#: PyMC's operations on a model's random variables, which the divided likelihood does not use.
STRUCTURE = {
    "pm.do(": lambda model: pm.do(model, {"sigma": 1.0}),
    "pm.observe(": lambda model: pm.observe(model, {"y": REAL}),
    "pm.model_to_graphviz(": lambda model: model.to_graphviz(),
    "pm.model_to_networkx(": pm.model_to_networkx,
    "pm.model_to_mermaid(": pm.model_to_mermaid,
    "model.table(": lambda model: model.table(),
    "model.debug(fn='logp'": lambda model: model.debug(),
    "model.debug(fn='dlogp'": lambda model: model.debug(fn="dlogp"),
}


@pytest.mark.parametrize("call", STRUCTURE)
def test_what_follows_random_variables_is_refused(call):
    with refuses(ValueError, "model", "the rows of y", hint=call):
        STRUCTURE[call](data_parallel(KINDS["linear"]()))


def test_data_of_divided_rows_cannot_be_set(make_world):
    make_world("threads", 2)
    with pm.Model() as plain:
        x, scale = pm.Data("x", X), pm.Data("scale", 2.0)
        pm.Normal("y", x @ pm.Normal("beta", shape=3) * scale, observed=REAL)
    parallel = data_parallel(plain)
    for act in (lambda: pm.set_data({"x": 2 * X}, model=parallel), lambda: parallel.set_data("x", 2 * X)):
        with refuses(ValueError, "name", "not divided (scale)", "'x'", "call data_parallel again"):
            act()
    pm.set_data({"scale": 3.0}, model=parallel)
    pm.set_data({"scale": 3.0}, model=plain)
    assert_same(parallel, plain)


def test_structure_beside_other_observed_variables_is_refused():
    with pm.Model() as model:
        a = pm.HalfNormal("a")
        pm.Normal("other", a, 1, observed=0.3)
        data_parallel(lambda y: pm.logp(pm.Normal.dist(a, 1), y), [REAL], name="y")
    with refuses(ValueError, "model", "the rows of y", hint="pm.do("):
        pm.do(model, {"a": 1.0})


def test_debug_of_random_values(capsys):
    data_parallel(KINDS["linear"]()).debug(fn="random")
    assert "No problems" in capsys.readouterr().out


#: Functions that return a model with the same log-probability.
COPIES = {
    "copy": lambda model: model.copy(),
    "deepcopy": copy.deepcopy,
    "clone_model": clone_model,
    "cloudpickle": lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
    "freeze_dims_and_data": freeze_dims_and_data,
    "freeze_model": freeze_model,
}


@pytest.mark.parametrize("case", COPIES)
def test_copies_of_a_model(make_world, case):
    make_world("threads", 3)
    plain = KINDS["linear"]()
    logp = COPIES[case](data_parallel(plain)).compile_logp()  # a copy that outlives the parallel model
    for point in points_of(plain, 3):
        np.testing.assert_allclose(logp(point), plain.compile_logp()(point), rtol=1e-10)


def test_all_else_is_equal(make_world):
    make_world("threads", 3)
    plain = KINDS["linear"]()
    parallel, trace = data_parallel(plain), pm.sample(model=plain, **SAMPLING)
    point = plain.initial_point(random_seed=1)
    for ask in (
        lambda model: model.compile_logp(jacobian=False)(point),
        lambda model: model.compile_dlogp()(point),
        lambda model: model.compile_fn(model.datalogp, inputs=model.value_vars)(point),
        lambda model: model.compile_fn(model.varlogp, inputs=model.value_vars)(point),
        lambda model: pm.compile(model.value_vars, model.logp())(*point.values()),
        lambda model: list(model.point_logps(point).values()),
        lambda model: pm.compute_log_prior(trace, model=model, extend_inferencedata=False)["sigma"],
        lambda model: compute_deterministics(trace, model=model, progressbar=False)["mu"],
        lambda model: pm.sample_prior_predictive(3, var_names=["mu"], model=model, random_seed=1)["prior"]["mu"],
        lambda model: pm.draw(model["mu"], random_seed=1),
    ):
        np.testing.assert_allclose(ask(parallel), ask(plain), rtol=1e-10)
    assert parallel.eval_rv_shapes() == plain.eval_rv_shapes()


def test_prior_predictive_of_all_is_refused():
    with refuses(ValueError, "model", "prior", hint="pm.sample_prior_predictive(model=model)"):
        pm.sample_prior_predictive(3, model=data_parallel(KINDS["logistic"]()))


def test_what_is_there_is_given(make_world):
    make_world("threads", 2)
    parallel, plain = data_parallel(KINDS["several_observed"]()), KINDS["several_observed"]()
    trace = trace_of(plain)

    for ask in (
        lambda model: pm.compute_log_likelihood(trace, var_names=["few"], extend_inferencedata=False, model=model)[
            "few"
        ],
        lambda model: pm.sample_posterior_predictive(
            trace, var_names=["few"], model=model, random_seed=1, progressbar=False
        )["posterior_predictive"]["few"],
        lambda model: pm.sample_prior_predictive(5, var_names=["a", "few"], model=model, random_seed=1)["prior"]["a"],
        lambda model: pm.compute_log_prior(trace, extend_inferencedata=False, model=model)["a"],
    ):
        found, expected = ask(parallel), ask(plain)
        assert found.size
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_plain_model_gives_it_for_the_same_trace(make_world):
    make_world("threads", 2)
    plain = KINDS["logistic"]()
    trace = pm.sample(model=data_parallel(plain), **SAMPLING)
    pm.compute_log_likelihood(trace, model=plain)
    pm.sample_posterior_predictive(trace, model=plain, extend_inferencedata=True, progressbar=False)
    assert trace.log_likelihood["y"].shape == trace.posterior_predictive["y"].shape == (1, 5, N)
    np.testing.assert_array_equal(trace.observed_data["y"], BINARY)


def test_observed_data_are_said_to_be_missing_once(make_world, caplog):
    make_world("threads", 2)
    parallel = data_parallel(KINDS["logistic"]())
    with caplog.at_level(logging.WARNING, "synkhronos"):
        for _ in range(2):
            pm.sample(model=parallel, **SAMPLING)
        pm.sample(model=of_a_function(), **SAMPLING)  # a potential needs no observed data
    said = [each.getMessage() for each in caplog.records if "observed_data" in each.getMessage()]
    assert len(said) == 1 and "does not contain y" in said[0] and "with the plain model" in said[0]


def test_other_models_and_arguments_are_left_alone():
    plain = KINDS["logistic"]()
    drawn = pm.sample_prior_predictive(3, model=plain)
    assert drawn["prior_predictive"]["y"].shape == (1, 3, N)
    with reports(TypeError, "no_such_argument"):
        pm.sample_prior_predictive(3, model=plain, no_such_argument=1)
    with reports(TypeError, "context"):
        pm.sample_prior_predictive(3)


PROGRAM = """
import numpy as np
from pymc import sample_posterior_predictive, find_MAP
import pymc as pm
from synkhronos.extensions.pymc import data_parallel

with pm.Model() as model:
    pm.Normal("y", pm.Normal("a"), 1, observed=np.arange(5.0))
parallel = data_parallel(model)
for ask in (lambda: sample_posterior_predictive([{"a": 1.0}], model=parallel),
            lambda: find_MAP(model=data_parallel(model, batch=2), jitter=False)):
    try:
        ask()
    except ValueError as error:
        print(error)
"""


@pytest.mark.thorough
def test_functions_imported_before(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], stdout=subprocess.PIPE, universal_newlines=True, timeout=250
    )
    said = done.stdout.splitlines()
    assert len(said) == 2 and "use the plain model" in said[0] and "omit batch=" in said[1]


#: Methods that call a likelihood many times, and need all rows in every call.
SAMPLERS = {
    "NUTS": lambda model: pm.sample(model=model, nuts_sampler="pymc", **SAMPLING),
    "Metropolis": lambda model: pm.sample(model=model, step=pm.Metropolis(model=model), **SAMPLING),
    "slices": lambda model: pm.sample(model=model, step=pm.Slice(model=model), **SAMPLING),
    "SMC": lambda model: pm.sample_smc(10, model=model, chains=1, cores=1, progressbar=False),
    "MAP": lambda model: pm.find_MAP(model=model, jitter=False, progressbar=False),
    "nutpie": lambda model: pytest.importorskip("nutpie").compile_pymc_model(model),
}


#: Forms of a function's data and batches.
FORMS = {
    "function": dict(data=[X, BINARY], batch=10),
    "iterable": dict(batch=[(X, BINARY)], total_size=N),
}


@pytest.mark.parametrize("form", ["model", *FORMS])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_batches_are_for_fit_alone(make_world, sampler, form):
    make_world("threads", 2)
    if form == "model":
        model = data_parallel(KINDS["logistic"](), batch=10)
    else:
        with pm.Model() as model:
            data_parallel(log_density, params=[pm.Normal("beta", shape=3)], name="y", **FORMS[form])
    with refuses(ValueError, "model", "all rows", "every call to y", "omit batch="):
        SAMPLERS[sampler](model)
    pm.fit(3, model=model, progressbar=False)


@pytest.mark.parametrize("sampler", ["Metropolis", "slices", "SMC"])
def test_other_samplers_of_all_rows(make_world, sampler):
    make_world("threads", 2)
    SAMPLERS[sampler](data_parallel(KINDS["logistic"]()))


def test_potentials_that_stay_with_the_master_are_said(make_world, caplog):
    make_world("threads", 2)
    with pm.Model() as plain:
        a = pm.Normal("a")
        pm.Normal("y", a, 1, observed=REAL)
        pm.Potential("many", -((X[:, 0] - a) ** 2).sum())
        pm.Potential("few", -((pt.as_tensor([1.0, 2.0]) - a) ** 2).sum())
    with caplog.at_level(logging.WARNING, "synkhronos"):
        parallel = data_parallel(plain)
    (said,) = [each.getMessage() for each in caplog.records if each.name == "synkhronos"]
    assert "(many)" in said and "few" not in said and "data_parallel(f, [arrays])" in said
    point = {"a": 0.3}
    np.testing.assert_allclose(parallel.compile_logp()(point), plain.compile_logp()(point), rtol=1e-10)


def test_a_model_of_potentials_alone():
    with pm.Model() as plain:
        pm.Potential("many", -((X[:, 0] - pm.Normal("a")) ** 2).sum())
    with refuses(ValueError, "model", "observed", hint="function"):
        data_parallel(plain)
