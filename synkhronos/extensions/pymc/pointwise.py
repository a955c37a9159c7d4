"""The log-likelihood of each row and draw, computed by all ranks (`compute_log_likelihood`)."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray
from pymc.backends.arviz import coords_and_dims_for_inferencedata
from pymc.model.transform.conditioning import remove_value_transforms
from pymc.pytensorf import collect_default_updates
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.type import TensorType
from rich.progress import track

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .likelihood import as_pymc_compiles
from .observed import Observed, observed_in, without_initial_values
from .parameter_checks import ParameterChecks
from .rows import of_any_rows
from .unavailable import refuse

Path = Union[str, "os.PathLike[str]"]

COMMAND_BYTES = 1 << 25  #: Size of the results of the draws in one command.


def compute_log_likelihood(
    idata: Any,
    model: Optional[pm.Model] = None,
    data: Optional[Sequence[str]] = None,
    *,
    out: Union[Path, Mapping[str, Path], None] = None,
    progressbar: bool = True,
    mode: Any = None,
) -> Any:
    """Add the log-likelihood of each row to ``idata``, as `pm.compute_log_likelihood` does, computed by all ranks.

    Every rank computes the log-probabilities of its own rows for some draws, and the master stores them. For functions
    such as ``arviz.loo`` and ``arviz.waic``.

    Parameters
    ----------
    idata : DataTree
        The result of `pm.sample`, with the group ``posterior``.
    model : pm.Model, optional
        The plain model; by default, the model whose context is active.
    data : list of str, optional
        Names of the observed variables to divide; see `data_parallel`. PyMC computes all others on the master.
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
        raise ArgumentValueError("idata", f"draws of {missing[0]}, which the model has", "a posterior without it")
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
    name = piece.variable.name
    rows, _ = of_any_rows(piece.rows, piece.variables, piece.params, name, len(piece.data[0]))
    checks = ParameterChecks(rows, piece.variables, model.check_bounds)
    draws = RowsOfDraws(piece, checks.rows, as_pymc_compiles(mode, model.check_bounds), checks)
    return draws.compute(model, posterior, file, f"Log-likelihood of {name}", progressbar)


class RowsOfDraws:
    """Computes an expression of the rows of ``piece`` for every draw of the posterior, many draws in one command.

    The parameters of all draws of a command are sent together; each step uses those at the number of its draw.
    """

    def __init__(self, piece: Observed, rows: Variable, mode: Any, checks: Optional[ParameterChecks] = None) -> None:
        self._piece, self._checks, self._n_steps = piece, checks, 0
        step, first = pytensor.shared(np.int64(0), name="step"), pt.lscalar("first")
        self._sampled = [i for i, of in enumerate(piece.of_model) if not isinstance(of, SharedVariable)]
        inputs, at = list(piece.params), {}
        for i in self._sampled:
            kind = piece.params[i].type
            inputs[i] = TensorType(kind.dtype, shape=(None, *kind.shape))(piece.params[i].name)
            at[piece.params[i]] = inputs[i][step - first]
        ops = ["gather"] + ([] if checks is None else [op for _, op in checks.outputs])
        found = [rows] + ([] if checks is None else [output for output, _ in checks.outputs])
        found = graph_replace(found, at, strict=False)
        self._function = synk.function(
            list(piece.variables),
            list(zip(found, ops)),
            updates={step: step + 1, **collect_default_updates(found)},
            bcast_inputs=[*inputs, first, *([] if checks is None else checks.inputs)],
            mode=mode,
            name=piece.variable.name,
            on_unused_input="ignore",
        )

    def compute(
        self, model: pm.Model, posterior: Any, file: Optional[Path], description: str, progressbar: bool
    ) -> np.ndarray[Any, Any]:
        """Return chains x draws x rows, in memory or in a file."""
        n_chains, n_draws = posterior.sizes["chain"], posterior.sizes["draw"]
        params = [self._values(i, model, posterior) for i in range(len(self._piece.params))]
        values: Any = None
        flat: Any = None
        begin = end = 0
        for i in track(range(n_chains * n_draws), description, disable=not progressbar):
            if i == end:
                n = 1 if flat is None else max(1, COMMAND_BYTES // max(1, flat[0].nbytes))
                begin, end = i, min(i + n, n_chains * n_draws)
                rows = self._rows(params, begin, end)
            if flat is None:
                values = self._allocated((n_chains, n_draws, *rows[0].shape), rows[0].dtype, file)
                flat = values.reshape((-1, *values.shape[2:]))
            flat[i] = rows[i - begin]
        return values  # type: ignore[no-any-return]

    def _rows(self, params: Sequence[Any], begin: int, end: int) -> Sequence[np.ndarray[Any, Any]]:
        """Return the rows of some draws; a check that fails on any rank fails on all ranks."""
        if self._checks is None or not self._checks.inputs:
            return self._steps(params, begin, end)[0]  # type: ignore[no-any-return]
        rows, passed = self._steps(params, begin, end, *self._checks.all_passed)
        for i in np.flatnonzero(~passed.all(axis=1)):
            rows[i] = self._steps(params, begin + i, begin + i + 1, passed[i].astype(bool))[0][0]
        return rows  # type: ignore[no-any-return]

    def _steps(self, params: Sequence[Any], begin: int, end: int, *passed: Any) -> Any:
        given = [value[begin:end] if i in self._sampled else value for i, value in enumerate(params)]
        first, self._n_steps = self._n_steps, self._n_steps + end - begin
        return self._function.steps(*self._piece.data, *given, first, *passed, n_steps=end - begin)

    def _values(self, i: int, model: pm.Model, posterior: Any) -> Any:
        """Return the draws of a parameter in one array, or the value of ``pm.Data``."""
        of = self._piece.of_model[i]
        if i not in self._sampled:
            return of.get_value()
        sampled = posterior[model.values_to_rvs[of].name].transpose("chain", "draw", ...).values
        return sampled.reshape((-1, *sampled.shape[2:])).astype(of.type.dtype, copy=False)

    def _allocated(self, shape: Any, dtype: Any, file: Optional[Path]) -> Any:
        n_rows = len(self._piece.data[0])
        if shape[2:3] != (n_rows,):
            got, hint = f"an array of shape {shape[2:]}", "use PyMC's own function for this variable"
            raise ArgumentValueError(self._piece.variable.name, f"{n_rows} rows from all ranks together", got, hint)
        if file is None:
            return np.empty(shape, dtype)
        return np.lib.format.open_memmap(file, "w+", dtype, shape)  # type: ignore[no-untyped-call]


def labeled(values: np.ndarray[Any, Any], name: str, model: pm.Model, posterior: Any) -> Any:
    """Return chains x draws x rows with the names and coordinates of the model's dimensions."""
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
