"""Checkpoints: parameters, rule state, random states and progress of a training run in one ``.npz`` file.

The file is written under a temporary name (``model.npz.5b0c....new``) and then renamed atomically (POSIX ``rename``).
After a kill, a power failure or a concurrent save, either the old or the new file exists, and it is complete.

====================  ==============================================================================
array                 contents
====================  ==============================================================================
``arr_0``, ...        values of variables that are equal on all ranks
``arr_0_of_1``, ...   values of one rank, if values differ between ranks
``news_arr_0``, ...   the master's rank, if the program set a value that other ranks have not received
``state_0``, ...      the state of the rule, in the same three forms
``counters``          the rule's counters, as JSON; ``rule`` contains the name of the rule's class
``progress_epoch``    the value passed as the keyword ``epoch``
====================  ==============================================================================

Any program can load the model if the network's parameters, equal on all ranks, are the first variables in the list::

    with np.load("model.npz") as file:
        n_params = len(lasagne.layers.get_all_params(network))
        lasagne.layers.set_all_param_values(network, [file["arr_%d" % i] for i in range(n_params)])
"""

from __future__ import annotations

import copy
import json
import logging
import os
import secrets
import zipfile
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.extending import axis_of_rows, find_engine, is_set_by_program

__all__ = ["load", "save"]

logger = logging.getLogger("synkhronos")


def save(path: str, variables: Sequence[Any], rule: Any = None, **progress: Any) -> None:
    """Save variables, a rule and progress to a file atomically; on failure, an existing file is unchanged.

    Without ranks (before `fork`, or in a serial program), the program's own values are saved like a single rank's.

    Parameters
    ----------
    path : str
    variables : list of shared variables
        All variables that the program needs to continue: parameters, update-rule state, and states of random streams.
        If values differ between ranks, each rank's value is saved. The file also records whether the program's value is
        newer than the ranks' values.
    rule : Rule, optional
        A rule of `synkhronos.extensions.rules`.
    **progress : numbers, strings or arrays
        Other values that the program needs to continue, such as the epoch.

    Raises
    ------
    OSError, ArgumentTypeError
        If the file cannot be written (the temporary file is removed), or an argument has the wrong type.

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, os, tempfile, theano
    >>> from synkhronos.extensions import checkpoint
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(2), "w")
    >>> f = synk.function([], w.sum())
    >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
    >>> synk.broadcast(w, [1., 2.])
    >>> checkpoint.save(path, [w], epoch=3)
    >>> synk.broadcast(w, [0., 0.])
    >>> checkpoint.load(path, [w])
    {'epoch': array(3)}
    >>> w.get_value()
    array([1., 2.])
    """
    for name, value in progress.items():
        if np.asarray(value).dtype.hasobject:
            hint = "pass its numbers separately"
            raise ArgumentTypeError(name, "numbers, text or an array of them", repr(value), hint)
    arrays: Dict[str, Any] = {f"progress_{name}": value for name, value in progress.items()}
    for name, variable in _named(variables, rule):
        of_ranks = _of_ranks(variable)
        if _agree(of_ranks):
            arrays[name] = of_ranks[0]
        else:
            arrays.update({f"{name}_of_{rank}": value for rank, value in enumerate(of_ranks)})
            if is_set_by_program(variable):
                arrays[f"news_{name}"] = _root()
    arrays["n_ranks"] = _n_ranks()
    if rule is not None:
        arrays["counters"], arrays["rule"] = json.dumps(rule.counters), type(rule).__name__
    _write(path, arrays)


def load(path: str, variables: Sequence[Any], rule: Any = None) -> Dict[str, Any]:
    """Restore variables and a rule on all ranks from a file written by `save`; return the saved progress.

    With the same number of ranks, each rank gets its own values, and training continues as if uninterrupted. With a
    different number of ranks:

    * A variable that differed between ranks is set to its mean over the ranks, and the log lists it. If the program had
      set the variable on the master alone, all ranks get the master's value.
    * If random states differed, each rank continues rank 0's sequence, advanced as after `fork`. The same applies to a
      state saved by a single rank, unless all ranks have equal states now.

    Without ranks, only the program's variables are set.

    Parameters
    ----------
    path, variables, rule
        As for `save`: the same variables in the same order, and a rule of the same class.

    Raises
    ------
    OSError, ValueError
        If the file is missing, incomplete, not from `save`, or incompatible with the arguments; nothing is changed.
    """
    arrays = _read(path)
    named, n_ranks = _named(variables, rule), _n_ranks()
    saved, given = str(arrays.get("rule", "None")), "None" if rule is None else type(rule).__name__
    if saved != given:
        raise ArgumentValueError("rule", f"{saved}, the rule saved in {path}", given)
    expected = {name for name, _ in named}
    found = {name.split("_of_")[0] for name in arrays if name.split("_")[0] in ("arr", "state")}
    if found != expected:
        got = f"{len(expected)} in total (different: {', '.join(sorted(found ^ expected)[:3])})"
        raise ArgumentValueError("variables", f"the variables in {path} ({len(found)} in total)", got)
    counters = None if rule is None else _counters(path, arrays, rule)
    values = [_values(path, arrays, name, variable) for name, variable in named]
    engine = find_engine(variables)
    remade, by_one = [], int(arrays["n_ranks"]) == 1
    for i, (_, variable) in enumerate(named):
        of_ranks = values[i]
        draws_apart = by_one and engine.is_random(variable) and not _agree(_of_ranks(variable))
        if len(of_ranks) == 1 and not draws_apart:
            values[i] = of_ranks * n_ranks
        elif len(of_ranks) != n_ranks:
            remade.append(str(variable.name or named[i][0]))
            if engine.is_random(variable):
                values[i] = [engine.jumped(variable, of_ranks[0], rank) for rank in range(n_ranks)]
            else:
                values[i] = [np.mean(of_ranks, axis=0).astype(of_ranks[0].dtype)] * n_ranks
    for (name, variable), of_ranks in zip(named, values):
        _give(variable, of_ranks)
        if f"news_{name}" in arrays and not _agree(of_ranks):
            variable.set_value(variable.get_value())  # so that exact functions send the master's value to all ranks
    if remade:
        logger.info("%s is converted from n_ranks=%d to n_ranks=%d: %s", path, arrays["n_ranks"], n_ranks, remade)
    if rule is not None:
        rule.counters = counters
    return {name[len("progress_") :]: value for name, value in arrays.items() if name.startswith("progress_")}


def _named(variables: Sequence[Any], rule: Any) -> List[Tuple[str, Any]]:
    engine = find_engine(variables)
    for i, variable in enumerate(variables):
        if engine is None or not engine.is_shared(variable):
            raise ArgumentTypeError(f"variables[{i}]", "a shared variable", repr(variable))
    state = [] if rule is None else rule.state
    return [(f"arr_{i}", each) for i, each in enumerate(variables)] + [(f"state_{i}", x) for i, x in enumerate(state)]


def _counters(path: str, arrays: Mapping[str, np.ndarray[Any, Any]], rule: Any) -> Dict[str, Any]:
    try:
        counters = json.loads(str(arrays["counters"]))
        if not isinstance(counters, dict) or set(counters) != set(rule.counters):
            raise ValueError(f"counters are {counters}")
    except (KeyError, ValueError) as error:
        raise ArgumentValueError("path", f"a file with the counters of {type(rule).__name__}", path) from error
    return counters


def _values(path: str, arrays: Mapping[str, np.ndarray[Any, Any]], name: str, variable: Any) -> List[Any]:
    """Return the saved values of a variable: a single value, or one per rank."""
    of_ranks = [f"{name}_of_{rank}" for rank in range(int(arrays["n_ranks"]))]
    lacking = [] if name in arrays else [one for one in of_ranks if one not in arrays]
    if lacking:
        raise ArgumentValueError("path", "a file written by save", f"{path}, which lacks {lacking[0]}")
    saved = [arrays[name]] if name in arrays else [arrays[one] for one in of_ranks]
    axis, root = axis_of_rows(variable), arrays.get(f"news_{name}")
    if root is not None and (axis is not None or len(saved) != _n_ranks() or root != _root()):
        saved = [saved[int(root)]]  # the program's value
    value = variable.get_value() if axis is not None else _get(0, variable)
    if isinstance(value, np.ndarray):
        n_ranks, ragged = _n_ranks(), len({each.shape for each in saved}) > 1
        for each in saved:
            fits = each.ndim == value.ndim if ragged else _but(each.shape, axis) == _but(value.shape, axis)
            if not fits or each.dtype != value.dtype:
                got = f"{value.dtype} {value.shape}"
                raise ArgumentValueError(str(variable.name or name), f"{each.dtype} {each.shape}, as saved", got)
        if ragged and len(saved) != n_ranks:
            expected = f"{len(saved)} ranks, as saved, because the ranks had different numbers of rows"
            raise ArgumentValueError(str(variable.name or name), expected, str(n_ranks))
        return saved
    return [_restored(value, str(each), str(variable.name or name)) for each in saved]


def _but(shape: Tuple[int, ...], axis: Optional[int]) -> Tuple[int, ...]:
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])


def _of_ranks(variable: Any) -> List[np.ndarray[Any, Any]]:
    """Return each rank's value as an array, or only the program's value if the variable contains a batch's rows."""
    if axis_of_rows(variable) is not None:
        return [variable.get_value()]
    return [_as_array(_get(rank, variable)) for rank in range(_n_ranks())]


def _n_ranks() -> int:
    return synk.size() if synk.is_forked() else 1


def _root() -> int:
    return synk.rank() if synk.is_forked() else 0


def _get(rank: int, variable: Any) -> Any:
    return synk.get_value(variable, rank) if synk.is_forked() else variable.get_value()


def _give(variable: Any, of_ranks: Sequence[Any]) -> None:
    """Set every rank's value; set only the program's if there are no ranks or the variable contains a batch's rows."""
    if axis_of_rows(variable) is not None or not synk.is_forked():
        variable.set_value(of_ranks[0])
    elif isinstance(of_ranks[0], np.ndarray) and _agree(of_ranks):
        synk.broadcast(variable, of_ranks[0])  # also records that all ranks have the same value
    else:
        for rank, value in enumerate(of_ranks):
            synk.set_value(variable, value, rank)


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array; random states become JSON, because unpickling could run arbitrary code."""
    if isinstance(value, np.ndarray):
        return value
    return np.array(json.dumps(_state(value), default=lambda part: part.tolist()))


def _restored(value: Any, text: str, name: str) -> Any:
    """Return a generator of the same kind as ``value``, with the state written by `_as_array`."""
    now, restored = _state(value), copy.deepcopy(value)
    try:
        state = json.loads(text)
        kind = state["bit_generator"]
        if kind == now["bit_generator"] and isinstance(value, np.random.Generator):
            restored.bit_generator.state = state
        elif kind == now["bit_generator"]:
            restored.set_state(state)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ArgumentValueError(name, "the state of a random stream, written by save", f"{text[:50]!r}") from error
    if kind != now["bit_generator"]:
        raise ArgumentValueError(name, f"bit generator {kind}, as saved", f"{now['bit_generator']}")
    return restored


def _state(generator: Any) -> Any:
    is_new = isinstance(generator, np.random.Generator)
    return generator.bit_generator.state if is_new else generator.get_state(legacy=False)


def _agree(of_ranks: Sequence[np.ndarray[Any, Any]]) -> bool:
    first = of_ranks[0]
    return all(value.shape == first.shape and value.tobytes() == first.tobytes() for value in of_ranks)


def _write(path: str, arrays: Mapping[str, Any]) -> None:
    """Write a temporary file and rename it to ``path``; on failure, remove the temporary file."""
    folder, name = os.path.split(os.path.abspath(path))
    new = os.path.join(folder, f"{name[:200]}.{secrets.token_hex(8)}.new")
    # O_EXCL follows no symbolic links; the permissions are those of any new file.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            # Not with `numpy.savez`, which does not close its archive if the disk is full.
            with zipfile.ZipFile(file, "w") as archive:
                for entry, value in arrays.items():
                    with archive.open(f"{entry}.npy", "w", force_zip64=True) as part:
                        write: Any = np.lib.format.write_array  # untyped
                        write(part, np.asanyarray(value), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could leave an empty file
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    entries = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entries)
    finally:
        os.close(entries)


def _read(path: str) -> Dict[str, np.ndarray[Any, Any]]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as found:
                arrays = dict(found)
            n_ranks = arrays["n_ranks"]
            if n_ranks.ndim or n_ranks.dtype.kind not in "iu" or n_ranks < 1:
                raise ValueError(f"n_ranks is {n_ranks}")
            if not all(int(root) in range(int(n_ranks)) for name, root in arrays.items() if name.startswith("news_")):
                raise ValueError("a rank is out of range")
        except Exception as error:  # from NumPy, zipfile, zlib, struct, ...
            got = f"{path}, which is an unrelated or truncated file ({type(error).__name__})"
            raise ArgumentValueError("path", "a file written by save", got) from error
    return arrays
