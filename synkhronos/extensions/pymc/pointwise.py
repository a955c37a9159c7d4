"""The log-likelihood of each row and draw, computed by all ranks (`compute_log_likelihood`)."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

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
from .written_draws import GatheredDraws, Path, WrittenDraws, can_be_written

COMMAND_BYTES = 1 << 25  #: Maximum size of the parameters and rows in one command, unless a single draw is larger.


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

    Every rank computes the log-probabilities of its own rows, for many draws in one command, and stores them. Functions
    such as ``arviz.loo`` and ``arviz.waic`` use these values.

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
        expected, hint = "the result of pm.sample, with the posterior group", "pass the value that pm.sample returns"
        raise ArgumentTypeError("idata", expected, f"an object of type {type(idata).__name__} without it", hint)
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
    """Return the log-likelihoods of a variable as an array of chains x draws x rows."""
    name, n_rows = piece.variable.name, len(piece.data[0])
    rows, _ = of_any_rows(piece.rows, piece.variables, piece.params, name, n_rows)
    checks = ParameterChecks(rows, piece.variables, model.check_bounds)
    description = f"Log-likelihood of {name}"
    draws = RowsOfDraws(checks.rows, piece, posterior, file, as_pymc_compiles(mode, model.check_bounds), checks)
    return draws.compute(model, description, progressbar)


class RowsOfDraws:
    """The rows of an `Observed` for every draw; a command sends many draws' parameters; each step computes one draw."""

    def __init__(
        self,
        rows: Variable,
        piece: Observed,
        posterior: Any,
        file: Optional[Path],
        mode: Any,
        checks: Optional[ParameterChecks] = None,
    ) -> None:
        self._piece, self._posterior, self._checks, self._n_done = piece, posterior, checks, 0
        self._shape = posterior.sizes["chain"], posterior.sizes["draw"], len(piece.data[0])
        step, (first, offset) = pytensor.shared(np.int64(0), name="step"), pt.lscalars("first", "offset")
        inputs, of_draw = [], {}
        for param, of in zip(piece.params, piece.of_model):
            inputs.append(param)
            if not isinstance(of, SharedVariable):
                inputs[-1] = TensorType(param.type.dtype, shape=(None, *param.type.shape))(param.name)
                of_draw[param] = inputs[-1][step + offset - first]
        (rows,) = graph_replace([rows], of_draw, strict=False)
        kind = WrittenDraws if can_be_written(rows, mode) else GatheredDraws
        self._draws = kind(rows, self._shape, file, step + offset)
        others = [] if checks is None else checks.outputs
        conditions = graph_replace([condition for condition, _ in others], of_draw, strict=False)
        self._function = synk.function(
            [*piece.variables, *self._draws.variables],
            [self._draws.output, *zip(conditions, (op for _, op in others))],
            updates={step: step + 1, **collect_default_updates([rows])},
            bcast_inputs=[*inputs, first, offset, *([] if checks is None else checks.inputs)],
            mode=mode,
            name=piece.variable.name,
            on_unused_input="ignore",
        )

    def compute(self, model: pm.Model, description: str, progressbar: bool) -> np.ndarray[Any, Any]:
        """Return the rows of all draws as an array of chains x draws x rows."""
        params, n_draws = [self._values(of, model) for of in self._piece.of_model], self._shape[0] * self._shape[1]
        n_rows, end = self._shape[2], 0
        nbytes = sum(each[0].nbytes for each in params if isinstance(each, np.ndarray)) + self._draws.nbytes
        try:
            for draw in track(range(n_draws), description, disable=not progressbar):
                if draw == end:
                    end = min(draw + max(1, COMMAND_BYTES // nbytes), n_draws)
                    begin, results = draw, self._rows(params, draw, end)
                n_found = self._draws.put(draw, results[draw - begin])
                if n_found != n_rows:
                    expected, name = f"{n_rows} rows from all ranks together", self._piece.variable.name
                    hint = "use PyMC's own function for this variable"
                    raise ArgumentValueError(name, expected, f"{n_found} rows", hint)
        finally:
            self._draws.close()
        return self._draws.values  # type: ignore[no-any-return]

    def _rows(self, params: Sequence[Any], begin: int, end: int) -> List[Any]:
        """Return the results for some draws. A check that fails on any rank fails on all ranks."""
        if self._checks is None or not self._checks.inputs:
            return list(self._steps(params, begin, end)[0])
        found, passed = self._steps(params, begin, end, self._checks.all_passed)
        results = list(found)
        for i in np.flatnonzero(~passed.astype(bool).all(axis=1)):
            results[i] = self._steps(params, begin + i, begin + i + 1, passed[i].astype(bool))[0][0]
        return results

    def _steps(self, params: Sequence[Any], begin: int, end: int, *passed: Any) -> Any:
        given = [each[begin:end] if isinstance(each, np.ndarray) else each.get_value() for each in params]
        offset, self._n_done = begin - self._n_done, self._n_done + end - begin
        return self._function.steps(
            *self._piece.data, *self._draws.data, *given, begin, offset, *passed, n_steps=end - begin
        )

    def _values(self, of: Variable, model: pm.Model) -> Any:
        """Return a variable's draws of all chains in one array, or the variable itself if all draws share its value."""
        if isinstance(of, SharedVariable):
            return of
        sampled = self._posterior[model.values_to_rvs[of].name].transpose("chain", "draw", ...).values
        return sampled.reshape((-1, *sampled.shape[2:])).astype(of.type.dtype, copy=False)


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
