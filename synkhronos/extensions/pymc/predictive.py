"""Draws of the observed variables for each posterior draw, computed by all ranks (`sample_posterior_predictive`)."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np
import pymc as pm
import xarray
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .likelihood import as_pymc_compiles
from .observed import Observed, draws_of, without_initial_values
from .pointwise import RowsOfDraws, files_of, labeled, posterior_of
from .rows import of_any_rows
from .unavailable import refuse
from .written_draws import Path


def sample_posterior_predictive(
    idata: Any,
    model: Optional[pm.Model] = None,
    var_names: Optional[Sequence[str]] = None,
    *,
    predictions: bool = False,
    out: Union[Path, Mapping[str, Path], None] = None,
    random_seed: Any = None,
    progressbar: bool = True,
    mode: Any = None,
) -> Any:
    """Draw the observed variables for each draw in ``idata``, as `pm.sample_posterior_predictive` does, on all ranks.

    Every rank draws its own rows, and stores them. The distribution is the same as with PyMC's function, but the random
    numbers differ, because every rank has its own stream. The same seed and number of ranks produce the same numbers.

    Parameters
    ----------
    idata : DataTree
        The result of `pm.sample`, with the group ``posterior``.
    model : pm.Model, optional
        The plain model; by default, the model whose context is active. For predictions, set its data beforehand
        (`pm.set_data`), with any number of rows.
    var_names : list of str, optional
        Names of the observed variables to draw; by default, all.
    predictions : bool
        Whether to add the group ``predictions`` instead of ``posterior_predictive``.
    out : path, or dict of name to path, optional
        A ``.npy`` file for the draws, which ``idata`` then reads from the file. Without a file, they are kept in
        memory: (number of chains) x (number of draws) x (number of rows) numbers. With several variables, pass a dict.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    mode : mode, optional
        The PyTensor mode for compiling the ranks' function.

    Returns
    -------
    DataTree
        ``idata``, with the new group: for each variable, an array of shape ``(n_chains, n_draws, n_rows, ...)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a variable combines rows; the message then names the operation.

    Examples
    --------
    >>> from synkhronos.extensions.pymc import sample_posterior_predictive
    >>> trace = pm.sample(model=data_parallel(model))                             # doctest: +SKIP
    >>> sample_posterior_predictive(trace, model, out="draws.npy")                # doctest: +SKIP
    >>> pm.set_data({"X": X_new}, model=model)                                    # doctest: +SKIP
    >>> sample_posterior_predictive(trace, model, predictions=True)               # doctest: +SKIP
    """
    model = pm.modelcontext(model)
    refuse("posterior predictive draws", var_names, model, "sample_posterior_predictive(trace, model)")
    observed = [each.name for each in model.observed_RVs]
    if isinstance(var_names, str):
        raise ArgumentTypeError("var_names", "a list of names", repr(var_names), f"pass [{var_names!r}]")
    names = observed if var_names is None else list(var_names)
    unknown = [each for each in names if each not in observed]
    if unknown or not names:
        expected = f"names of observed variables ({', '.join(observed) or 'the model has none'})"
        hint = "pm.sample_posterior_predictive draws other variables"
        raise ArgumentValueError("var_names", expected, repr(unknown[0] if unknown else names), hint)
    with without_initial_values(model):
        plain = remove_value_transforms(model)
    files, posterior = files_of(out, names), posterior_of(idata, model)
    for name in names:
        _refuse_python_functions(plain, plain[name])
    pieces = [draws_of(plain, plain[name]) for name in names]
    seeds = np.random.default_rng(random_seed).integers(2**62, size=len(pieces))
    drawn = [_draw_of(piece, int(seed)) for piece, seed in zip(pieces, seeds)]
    found = {}
    for piece, rows in zip(pieces, drawn):
        name = piece.variable.name
        draws = RowsOfDraws(rows, piece, posterior, files.get(name), as_pymc_compiles(mode, plain.check_bounds))
        values = draws.compute(plain, f"Draws of {name}", progressbar)
        found[name] = labeled(values, name, plain, posterior)
    idata["predictions" if predictions else "posterior_predictive"] = xarray.Dataset(found)
    return idata


def _refuse_python_functions(model: pm.Model, rv: Variable) -> None:
    """Refuse draws by a Python function, which would run on every rank as if the rank's rows were all rows."""
    others = [each for each in model.basic_RVs if each is not rv]
    for each in ancestors([rv], others):
        if each.owner is not None and isinstance(each.owner.op, (CustomDistRV, SimulatorRV)):
            hint = f"leave {rv.name} out of var_names; pm.sample_posterior_predictive draws it on the master"
            got = "draws by a Python function (random= of pm.CustomDist, or pm.Simulator)"
            raise ArgumentTypeError(rv.name, "a distribution of PyMC, or a pm.CustomDist with dist=", got, hint)


def _draw_of(piece: Observed, seed: int) -> Variable:
    """Return a draw of a variable's rows from new random streams; the model's streams remain unchanged."""
    name, n_rows = piece.variable.name, len(piece.data[0])
    try:
        rows, _ = of_any_rows(piece.rows, piece.variables, piece.params, name, n_rows)
    except ArgumentTypeError as error:
        expected, got = (text.replace("a log-probability", "a variable") for text in (error.expected, error.got))
        hint = f"leave {name} out of var_names; pm.sample_posterior_predictive draws it on the master"
        raise ArgumentTypeError(name, expected, got, hint) from None
    (drawn,) = replace_rng_nodes([rows])
    reseed_rngs(find_rng_nodes([drawn]), seed)
    return drawn
