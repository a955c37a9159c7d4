"""`data_parallel` with models of pymc-marketing: value and gradient equal the plain model's, or the model is refused.

pymc-marketing needs an older PyMC, so it is not installed with the tests. To run this file, install it in a
separate environment.
"""

import numpy as np
import pytest
from refusals import refuses

pytest.importorskip("pymc")
clv = pytest.importorskip("pymc_marketing.clv")

import pandas  # noqa: E402
from pymc_marketing import mmm  # noqa: E402
from pymc_models import assert_same  # noqa: E402

from synkhronos.extensions.pymc import data_parallel  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.pytensor,
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::Warning"),
]

N = 61


def customers(**changes):
    """Return a table of customers with the numbers and times of their purchases."""
    random = np.random.default_rng(0)
    age, frequency = random.integers(20, 60, N).astype(float), random.poisson(2, N)
    columns = dict(
        customer_id=np.arange(N),
        frequency=frequency,
        recency=np.where(frequency > 0, age * random.random(N), 0),
        T=age,
        x=random.normal(size=N),
    )
    return pandas.DataFrame({**columns, **changes})


COVARIATES = dict(purchase_covariate_cols=["x"], dropout_covariate_cols=["x"])
RENEWALS = dict(recency=1 + np.arange(N) % 7, T=8, cohort="a")
MODELS = {
    "BetaGeo": (clv.BetaGeoModel, {}, {}),
    "BetaGeo with covariates": (clv.BetaGeoModel, {"model_config": COVARIATES}, {}),
    "ModifiedBetaGeo": (clv.ModifiedBetaGeoModel, {}, {}),
    "ParetoNBD": (clv.ParetoNBDModel, {}, {}),
    "ShiftedBetaGeo": (clv.ShiftedBetaGeoModel, {}, RENEWALS),
}


@pytest.mark.parametrize("name", MODELS)
def test_customer_lifetime_value(make_world, name):
    make_world("threads", 3)
    build, arguments, columns = MODELS[name]
    built = build(**arguments)
    built.build_model(customers(**columns))
    assert_same(data_parallel(built.model), built.model, 10)


def test_spending_has_no_observed_variable():
    built = clv.GammaGammaModel()
    built.build_model(customers(monetary_value=10 + np.arange(N)).query("frequency > 0"))
    with refuses(ValueError, "model", "observed", hint="pm.Potential"):
        data_parallel(built.model)


def test_media_mix_combines_weeks():
    """A media mix model is refused, because advertising affects later rows."""
    random = np.random.default_rng(0)
    table = pandas.DataFrame(
        dict(date_week=pandas.date_range("2020-01-01", periods=N, freq="W"), a=random.random(N), b=random.random(N))
    )
    built = mmm.MMM(
        date_column="date_week",
        channel_columns=["a", "b"],
        target_column="y",
        adstock=mmm.GeometricAdstock(l_max=4),
        saturation=mmm.LogisticSaturation(),
    )
    built.build_model(table, pandas.Series(random.random(N), name="y"))
    with refuses(TypeError, "y", "alone", "combines"):
        data_parallel(built.model)
