"""The log-likelihood of each row and draw, computed by all ranks (`compute_log_likelihood`)."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import pymc as pm
import xarray
from pymc.backends.arviz import coords_and_dims_for_inferencedata
from pymc.model.transform.conditioning import remove_value_transforms
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from rich.progress import track

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .likelihood import as_pymc_compiles
from .observed import Observed, observed_in, without_initial_values
from .parameter_checks import ParameterChecks
from .rows import of_any_rows
from .unavailable import refuse
from .written_draws import GatheredDraws, Path, WrittenDraws, can_be_written


def compute_log_likelihood(
    idata: Any,
    model: Optional[pm.Model] = None,
    data: Optional[Sequence[str]] = None,
    *,
    out: Union[Path, Mapping[str, Path], None] = None,
    progressbar: bool = True,
    mode: Any = None,
) -> Any:
    """Add each row's log-likelihood, computed by all ranks, to ``idata``, as `pm.compute_log_likelihood` does.

    Each draw is one call: every rank computes the log-probabilities of its own rows, and stores them. Functions such
    as ``arviz.loo`` and ``arviz.waic`` use these values.

    Parameters
    ----------
    idata : DataTree
        The result of `pm.sample`, with the group ``posterior``.
    model : pm.Model, optional
        The plain model; by default, the model whose context is active.
    data : list of str, optional
        Names of the observed variables to divide; see `data_parallel`. PyMC computes the others on the master.
    out : path, or dict of name to path, optional
        A ``.npy`` file for the values, which ``idata`` then reads from the file. Without a file, they are kept in
        memory: (number of chains) x (number of draws) x (number of rows) x 8 bytes. With several divided variables,
        pass a dict.
    progressbar : bool
    mode : mode, optional
        The PyTensor mode for compiling the ranks' function.

    Returns
    -------
    DataTree
        ``idata``, with the group ``log_likelihood``: for each observed variable, an array of shape
        ``(n_chains, n_draws, n_rows, ...)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a log-probability combines rows; the message then names the operation.

    Examples
    --------
    >>> from synkhronos.extensions.pymc import compute_log_likelihood
    >>> trace = pm.sample(model=data_parallel(model))                # doctest: +SKIP
    >>> compute_log_likelihood(trace, model, out="values.npy")       # doctest: +SKIP
    >>> arviz.loo(trace)                                             # doctest: +SKIP
    """
    model = pm.modelcontext(model)
    refuse("a log-likelihood", data, model, "compute_log_likelihood(trace, model)")
    with without_initial_values(model):
        plain = remove_value_transforms(model)
    pieces = observed_in(plain, data)
    divided = [piece.variable.name for piece in pieces]
    files, posterior = files_of(out, divided), posterior_of(idata, model)
    found = {}
    for piece in pieces:
        name = piece.variable.name
        values = _computed(piece, plain, posterior, files.get(name), progressbar, mode)
        found[name] = labeled(values, name, plain, posterior)
    rest = [each.name for each in model.observed_RVs if each.name not in divided]
    if rest:
        of_others = pm.compute_log_likelihood(
            idata, var_names=rest, model=model, extend_inferencedata=False, progressbar=progressbar
        )
        found.update({name: of_others[name] for name in rest})
    idata["log_likelihood"] = xarray.Dataset(found)
    return idata


def posterior_of(idata: Any, model: pm.Model) -> Any:
    """Return the draws as a Dataset; refuse results without draws, or draws of another model."""
    if "posterior" not in getattr(idata, "children", ()):
        expected, hint = "the result of pm.sample, with the group posterior", "pass the value that pm.sample returns"
        raise ArgumentTypeError("idata", expected, f"a {type(idata).__name__} without it", hint)
    posterior = idata["posterior"].to_dataset()
    missing = [each.name for each in model.free_RVs if each.name not in posterior]
    if missing:
        raise ArgumentValueError("idata", f"draws of {missing[0]}, a variable of the model", "a posterior without it")
    if not posterior.sizes["chain"] * posterior.sizes["draw"]:
        raise ArgumentValueError("idata", "at least one draw", "a posterior without draws")
    return posterior


def files_of(out: Any, names: Sequence[str]) -> Dict[str, Path]:
    if out is None or isinstance(out, Mapping):
        unknown = [name for name in out or () if name not in names]
        if unknown:
            raise ArgumentValueError("out", f"names of divided variables ({', '.join(names)})", repr(unknown[0]))
        return dict(out or {})
    if len(names) > 1:
        raise ArgumentTypeError("out", f"a dict of paths, one for each of {', '.join(names)}", repr(out))
    return {names[0]: out}


def _computed(
    piece: Observed, model: pm.Model, posterior: Any, file: Optional[Path], progressbar: bool, mode: Any
) -> np.ndarray[Any, Any]:
    """Return the log-likelihoods of a variable: chains x draws x rows."""
    name, n_rows = piece.variable.name, len(piece.data[0])
    rows, _ = of_any_rows(piece.rows, piece.variables, piece.params, name, n_rows)
    checks = ParameterChecks(rows, piece.variables, model.check_bounds)

    def build(output: Any, variables: List[Variable], params: List[Variable]) -> Callable[..., Any]:
        function = synk.function(
            [*piece.variables, *variables],
            [output, *checks.outputs],
            bcast_inputs=[*piece.params, *params, *checks.inputs],
            mode=as_pymc_compiles(mode, model.check_bounds),
            name=name,
            on_unused_input="ignore",
        )
        return functools.partial(checks.call, function)

    return of_draws(build, checks.rows, piece, model, posterior, file, f"Log-likelihood of {name}", progressbar)


def of_draws(
    build: Callable[[Any, List[Variable], List[Variable]], Callable[..., Any]],
    rows: Variable,
    piece: Observed,
    model: pm.Model,
    posterior: Any,
    file: Optional[Path],
    description: str,
    progressbar: bool,
) -> np.ndarray[Any, Any]:
    """Compute ``rows`` of a piece for every draw; return chains x draws x rows.

    ``build`` receives an output and other inputs (with rows, then without); it returns the function to call per draw.
    """
    n_rows = len(piece.data[0])
    samples: List[Any] = []
    for of in piece.of_model:
        if isinstance(of, SharedVariable):
            samples.append(of)
        else:
            sampled = posterior[model.values_to_rvs[of].name].transpose("chain", "draw", ...)
            samples.append(sampled.values.astype(of.type.dtype, copy=False))
    n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
    kind = WrittenDraws if can_be_written(rows) else GatheredDraws
    draws = kind(rows, (n_chains, n_draws, n_rows), file)
    try:
        function = build(draws.output, draws.variables, draws.params)
        for i in track(range(n_chains * n_draws), description, disable=not progressbar):
            at = divmod(i, n_draws)
            params = [each.get_value() if isinstance(each, SharedVariable) else each[at] for each in samples]
            n_found = draws.put(i, *function(*piece.data, *draws.data, *params, *[i] * len(draws.params)))
            if n_found != n_rows:
                hint = "use PyMC's own function for this variable"
                expected = f"{n_rows} rows from all ranks together"
                raise ArgumentValueError(piece.variable.name, expected, f"{n_found} rows", hint)
    finally:
        draws.close()
    return draws.values  # type: ignore[no-any-return]


def labeled(values: np.ndarray[Any, Any], name: str, model: pm.Model, posterior: Any) -> Any:
    """Return an array of chains x draws x rows, labeled with the model's dimension names and coordinates."""
    coords, dims = coords_and_dims_for_inferencedata(model)
    names = dims.get(name) or [f"{name}_dim_{i}" for i in range(values.ndim - 2)]
    kept = {}
    for key, length in zip(names, values.shape[2:]):
        given = coords.get(key)
        kept[key] = given if given is not None and len(given) == length else np.arange(length)
    return xarray.DataArray(
        values,
        dims=("chain", "draw", *names),
        coords={"chain": posterior["chain"], "draw": posterior["draw"], **kept},
    )
