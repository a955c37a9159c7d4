"""Engine interface for all access to symbolic variables and functions, which are opaque to other packages."""

from __future__ import annotations

import copy
import enum
import weakref
from abc import ABC, abstractmethod
from typing import Any, Callable, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, SynkhronosError
from ..reductions import Accumulator, ReduceOp
from ..sharding import Placement, PlacementRule, Shard
from . import get, home_of
from .observer import settle


class ArrayType(NamedTuple):
    """The static type of a dense array."""

    dtype: np.dtype[Any]
    ndim: int
    broadcastable: Tuple[bool, ...]  # True for a dimension whose length is always 1

    @property
    def words(self) -> str:
        """Description of the type for messages, such as ``float64 matrix``."""
        return f"{self.dtype} {('scalar', 'vector', 'matrix')[self.ndim] if self.ndim < 3 else f'tensor{self.ndim}'}"

    def axis_of_rows(self, axis: int, label: str) -> int:
        """Return ``axis`` counted from 0; raise an error if the type lacks the axis or fixes its length at 1."""
        if not -self.ndim <= axis < self.ndim:
            raise ArgumentValueError("axis", f"an axis of {label}, of type {self.words}", str(axis))
        if self.broadcastable[axis]:
            raise ArgumentValueError("axis", f"an axis of {label} that may have any length", f"{axis}, broadcastable")
        return axis % self.ndim


class Input(NamedTuple):
    """An input of a compiled function, as its caller sees it."""

    variable: Any
    name: Optional[str]
    type: Optional[ArrayType]  # None if it is not a dense array (sparse, generic, ...)
    mutable: bool  # whether the function may overwrite the array that is passed
    has_default: bool
    default: Any
    spec: Any = None  # additional data that the engine needs to convert a value
    state: Any = None  # the shared variable that stores the input's value between calls, if any
    is_updated: bool = False  # whether the function updates the stored value


class Output(NamedTuple):
    """An output of a compiled function."""

    variable: Any
    label: str  # its name in messages, e.g. "outputs[0] (loss)"
    type: Optional[ArrayType]
    key: Optional[str] = None  # key of the output, if the function returns a dict


class CollectiveDependence(enum.IntEnum):
    """Dependence of a value on the collectives in its graph: none, an affine function of averages, or any other."""

    NONE = 0
    AFFINE = 1
    OTHER = 2

    def of_update(self, differs: bool) -> CollectiveDependence:
        """Return an update's dependence; ``differs`` is true if it depends on the rank's own rows or random numbers."""
        return CollectiveDependence.OTHER if differs and self == CollectiveDependence.AFFINE else self


class SplitPoint(NamedTuple):
    """Split point of an exact function, which is computed per slice before the split and once after it."""

    ops: List[Optional[str]]  # for each value that crosses the split: the op that combines slices; None if they agree
    after_split: List[int]  # indices of the outputs computed after the split
    why_not: str  # why the function cannot be split; "" if it can
    remedy: str = ""  # a change to the program that would allow the split; "" if none is known


class Collectives(NamedTuple):
    """The collectives inside a function's graph, from `synkhronos.ops` or ``exact=True``.

    ``replicated_updates`` and ``updates`` have the order of `Engine.updated_in`. An update is replicated if it depends
    on a collective, or if all ranks compute the same value without one (a step counter, for example). For an affine
    function of averages, the mean over slices is the value for all rows. An update that also depends on the rank's own
    rows is `OTHER`, because slices are weighted by these rows, but collectives by the rows of all ranks.
    """

    ops: List[ReduceOp]  # in the order of execution; conditions may skip some of them
    replicated_updates: List[bool]  # whether all ranks apply the update, even ranks without rows
    updates: List[CollectiveDependence]
    outputs: List[CollectiveDependence]
    cut: Optional[SplitPoint] = None  # set for exact functions, whose dependences are irrelevant
    divides: bool = False  # whether `ops.shard` divides rows, so a call may start before their number is known


class Inside(NamedTuple):
    """A collective inside a function, with its variables (names and types) and the updates that depend on it."""

    number: int  # in `CurrentCall.all_reduce`
    op: str
    variables: List[str]
    updates: List[str]


class Sharding(NamedTuple):
    """The placements of a function's values over the ranks, and its collectives in the order of their numbers."""

    inputs: List[Placement]  # in the order of `Engine.inputs`
    outputs: List[Placement]
    updates: List[Placement]  # of the new values, in the order of `Engine.updated_in`
    collectives: List[Inside]


class Engine(ABC):
    """Interface for compiling functions and managing shared variables; one object per process, without session state.

    Methods that check values have no side effects. For invalid values, they raise `synkhronos.errors.ArgumentError`.
    """

    #: The engine's name in `engines.get`, on every rank.
    name: str
    #: The library's own ``function``, as a `Catcher`; None if calls to it cannot be caught.
    catcher: Any = None

    def __reduce__(self) -> Any:
        # Pickle only the name and the module, so that a rank uses its own object and imports the module if necessary.
        return get, (self.name, home_of(self.name))

    # -- recognition ---------------------------------------------------------------------------------------------

    @abstractmethod
    def owns(self, thing: Any) -> bool:
        """Return whether ``thing`` (a variable, function, or wrapped input or output) belongs to this engine."""

    @abstractmethod
    def is_shared(self, thing: Any) -> bool:
        """Return whether ``thing`` is a shared variable of this engine."""

    @abstractmethod
    def label(self, variable: Any, place: str = "unnamed") -> str:
        """Return the variable's name for messages, or a description if it has none.

        An unnamed shared variable is described by ``place`` and its type: *updates[3] (float64 matrix)*.
        """

    # -- shared variables ----------------------------------------------------------------------------------------

    @abstractmethod
    def shared_type(self, shared: Any) -> Optional[ArrayType]:
        """Return the type of the shared variable's value; None if it is not a dense array."""

    @abstractmethod
    def identity(self, shared: Any) -> Hashable:
        """Return a key that is equal for two shared variables if and only if they share storage."""

    @abstractmethod
    def storage(self, shared: Any) -> List[Any]:
        """Return the variable's storage: a list whose only element is the value; the list itself is never replaced."""

    def get(self, shared: Any) -> Any:
        """Return the variable's current value, on the host or on the device, without copying."""
        storage = self.storage(shared)
        settle(storage)
        return storage[0]

    def put(self, shared: Any, value: Any) -> None:
        """Store ``value``, a result of `coerce`, `to_device` or `get`, without copying or checking it."""
        self.storage(shared)[0] = value

    @abstractmethod
    def coerce(self, shared: Any, value: Any, argument: str) -> np.ndarray[Any, Any]:
        """Return the host value that ``set_value(value)`` would store, without storing it, or raise ArgumentError."""

    def to_device(self, shared: Any, value: Any) -> Any:
        """Return ``value`` on the host or device where the variable stores its value; copy only if necessary."""
        return self.to_host(value)

    def export(self, shared: Any) -> Any:
        """Return a copy of the variable's value on the host, like the variable's own ``get_value``."""
        value = self.get(shared)
        return np.array(value) if self.is_on_device(value) else copy.deepcopy(value)

    def default_update(self, shared: Any) -> Any:
        """Return the variable's default update, which functions that use the variable apply; None if there is none."""
        return getattr(shared, "default_update", None)

    @abstractmethod
    def blueprint(self, shared: Any) -> Any:
        """Return a picklable description of the shared variable without its value."""

    @abstractmethod
    def build(self, blueprint: Any, value: Any, storage_of: Optional[Any] = None) -> Any:
        """Return this rank's replica of a shared variable, with ``value`` (not copied) or ``storage_of``'s storage."""

    # -- functions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def compile(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        """Compile one function, exactly as the engine's own ``function`` would."""

    def draft(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Tuple[Any, Any]:
        """Return a function with the inputs, outputs and errors of `compile`, but not for calls, and a `snapshot`."""
        compiled = self.compile(inputs, outputs, updates, givens, **kwargs)
        return compiled, self.snapshot(inputs, outputs, updates, givens, **kwargs)

    def settings_after_draft(self, snapshot: Any) -> Mapping[str, Any]:
        """Return keyword arguments for compiling a drafted function, even after the program has changed the flags."""
        return {}

    def with_states(self, inputs: Sequence[Any]) -> List[Any]:
        """Return inputs that store their values in shared variables; all graphs of a function must use the result."""
        return list(inputs)

    def is_implicit(self, given: Any) -> bool:
        """Return whether callers cannot pass a value for this input."""
        return False

    @abstractmethod
    def inputs(self, compiled: Any) -> List[Input]:
        """Return the inputs that a caller may pass, in the order of the function's arguments."""

    def default(self, compiled: Any, given: Input) -> Any:
        """Return the value that the next call uses for an omitted input with a default."""
        return given.default

    @abstractmethod
    def outputs(self, compiled: Any) -> List[Output]:
        """Return the outputs as a flat list, in the order of the results of `call`."""

    @abstractmethod
    def shareds(self, compiled: Any) -> List[Any]:
        """Return the shared variables of a function, including `states`, without repeats, in a fixed order."""

    @abstractmethod
    def written(self, compiled: Any) -> List[Any]:
        """Return the shared variables whose values a call may overwrite, or store in another variable."""

    def states(self, compiled: Any) -> List[Any]:
        """Return the shared variables that store inputs' values between calls."""
        return []

    @abstractmethod
    def convert(self, input: Input, value: Any, argument: str) -> Any:
        """Return ``value`` as the engine itself would convert it for this input, or raise ArgumentError."""

    @abstractmethod
    def check(self, input: Input, dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
        """Raise the error, if any, that `convert` would raise for an array of this dtype and shape."""

    @abstractmethod
    def call(self, compiled: Any, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> List[Any]:
        """Call the function with one value per input; return all or selected outputs in a list (scalars as 0-d arrays).

        No output shares memory with an input, a current or former shared value, or a buffer that the next call reuses.
        """

    #: Whether `call_together` exists, which computes a call of all ranks in one thread.
    calls_together = False

    def call_together(
        self,
        ranks: Sequence[int],
        functions: Sequence[Any],
        steps: Sequence[Any],
        calls: Sequence[Any],
        subset: Any,
        n_most: int = 1,
    ) -> Tuple[List[List[List[Any]]], Callable[[], object]]:
        """Call a function on several ranks; return the results by step and rank, and the change of the ranks' values.

        ``steps`` are the arguments by step and rank, in the order of ``ranks``. The engine may compute the first steps
        only; the change is that of all computed steps. ``calls`` are the `in_graph` calls, or None without collectives.
        Results may be on devices. ``n_most`` is the largest number of steps that later calls may have.
        """
        raise NotImplementedError(f"the engine {self.name!r} calls each rank's function separately")

    def replace_lost(self, functions: Sequence[Any], error: BaseException) -> bool:
        """Replace values of the ranks' functions that an error of devices has destroyed, and add a note to the error.

        Return whether there are any.
        """
        return False

    def collective_together(self, name: str, argument: Any, columns: Sequence[Sequence[Any]]) -> Any:
        """Compute a collective of values by variable and rank on devices; return None if the ranks must compute it.

        ``name`` is "all_reduce", with a `Reduction` as ``argument``, "broadcast", "all_gather", or "gather", from all
        ranks or one. Return the complete results, by variable and rank, and the bytes that each rank has read from
        other ranks and sent to them.
        """
        return None

    def why_whole(self, compiled: Any) -> Sequence[str]:
        """Return why a `variant` computes each new value whole; "" for one in parts. () if the engine divides none."""
        return ()

    def on_ranks(self, compiled: Any) -> Any:
        """Return the function for `call` on ranks: it shares ``compiled``'s storages and leaves results on devices."""
        return compiled

    def reference(self, owner: Any) -> Callable[[], Any]:
        """Return a callable like ``weakref.ref(owner.on_ranks)``; it does not keep the function or its owner alive."""
        return weakref.ref(owner.on_ranks)

    def present(self, compiled: Any, index: int, value: Any) -> Any:
        """Return an output's value as the engine's own function would return it, on the host or on the device."""
        return value

    def take(self, array: Any, rows: Any) -> Any:
        """Return the rows that a `Selection` picks from a shared variable's value; they stay on the host or device."""
        return rows.take(array)

    def constant(self, rank: int, handle: Any, array: Any) -> Any:
        """Return a constant array of the host, or the copy of it that the rank keeps on its device."""
        return array

    def accumulator(self, op: ReduceOp, keep_dtype: bool = False) -> Any:
        """Return an object like `Accumulator` for the values of slices, on the host or on the device."""
        return Accumulator(op, keep_dtype)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether an error from a function call reports that a device is out of memory."""
        return False

    def copy(self, compiled: Any, snapshot: Any, **kwargs: Any) -> Tuple[Any, Any]:
        """Copy a function with the engine's own ``copy``; return the copy and its snapshot."""
        raise ArgumentTypeError("copy", "an engine that copies functions", repr(self.name), "build the function again")

    def function_name(self, compiled: Any) -> Optional[str]:
        """Return the function's name, for messages; None if it has none."""
        name: Optional[str] = compiled.name
        return name

    def trust_input(self, compiled: Any) -> bool:
        """Return whether the engine's own function skips checks of its arguments."""
        return False

    def set_trust_input(self, compiled: Any, trust_input: bool) -> None:
        """Choose whether the engine's own function skips argument checks; raise an error if this is impossible."""
        if trust_input:
            hint = f"functions of the engine {self.name!r} always check their arguments"
            raise ArgumentValueError("trust_input", "False", repr(trust_input), hint)

    def free(self, compiled: Any) -> None:  # noqa: B027, nothing to do if functions keep no intermediate results
        """Free the memory that the function keeps between calls for intermediate results."""

    def warm_up(self, compiled: Any) -> None:  # noqa: B027, nothing to do for an engine that compiles immediately
        """Compile everything that the function's first call would compile; ranks do so in advance, without a call."""

    def profile(self, compiled: Sequence[Any]) -> Any:
        """Return picklable profiling counts for these functions; None if they are not profiled."""
        return None

    def merged_profile(self, compiled: Sequence[Any], counts: Sequence[Any]) -> Any:
        """Return one profile of the engine's own kind for all ranks; ``counts`` are the ranks' results of `profile`."""
        raise ArgumentTypeError("profile", f"False, because engine {self.name!r} does not profile functions", "True")

    # -- other graphs of the same function -----------------------------------------------------------------------

    @abstractmethod
    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        """Return the givens as pairs of variables; an array becomes a shared variable that all graphs use."""

    @abstractmethod
    def snapshot(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        """Copy the function's graph before any optimization, for `variant`, without compiling it.

        Givens are substituted and default updates collected now, so later changes to variables have no effect.
        """

    @abstractmethod
    def updated_in(self, snapshot: Any) -> List[Any]:
        """Return the shared variables that a call updates, explicitly or by default, in a fixed order."""

    @abstractmethod
    def variant(self, snapshot: Any, sliced: bool, as_inputs: Sequence[Any]) -> Any:
        """Compile another graph of the function; its outputs are a list, in the order of `outputs`.

        Its inputs are the function's inputs, then one for each of ``as_inputs``: shared variables whose values the
        caller passes. Such an input replaces its variable wherever the graph reads it, but updates still change the
        variable.

        If ``sliced``, the new values of all variables in `updated_in` except random states become additional outputs,
        in that order, instead of being stored. They are computed from the values before the call; only random states
        advance. If `collectives` is not None, all new values are outputs, sliced or not (but see `after_collective`).
        No output shares memory with a shared variable, another output or a buffer that the next call overwrites.
        """

    def note_graph(self, compiled: Any, snapshot: Any) -> None:  # noqa: B027, only engines of graphs need it
        """Record that the function that ranks call, ``compiled``, was compiled from this snapshot."""

    def after_collective(self, snapshot: Any, as_inputs: Sequence[Any]) -> Any:
        """Compile the part of an exact function that a sliced call computes once, after all slices (`Collectives.cut`).

        Its inputs are the inputs of `variant`, then the values that cross the split. Its outputs are the outputs after
        the split, then the new values that are not random states. The sliced `variant` returns the function's outputs
        (placeholders for outputs after the split), the values that cross the split, and the new random states.
        """
        raise ArgumentTypeError("exact", f"False, because engine {self.name!r} has no exact functions", "True")

    @abstractmethod
    def shapes(self, snapshot: Any, as_inputs: Sequence[Any]) -> Any:
        """Compile a function of `variant`'s inputs that returns each output's shape (int64, empty if not dense)."""

    # -- collectives inside functions -----------------------------------------------------------------------------

    def all_reduce(self, variables: Sequence[Any], op: ReduceOp) -> List[Any]:
        """Return expressions for the reduced variables; one collective computes them with `in_graph.all_reduce`."""
        raise ArgumentTypeError("all_reduce", "an engine with collectives inside functions", repr(self.name))

    def shard(self, variable: Any, axis: int) -> Any:
        """Return an expression for this rank's rows of ``variable``; it is evaluated with `in_graph.share`."""
        raise ArgumentTypeError("shard", "an engine that divides rows inside functions", repr(self.name))

    def collectives(self, snapshot: Any, scattered: Mapping[Any, int]) -> Optional[Collectives]:
        """Describe the collectives inside a function; return None if it uses no `synkhronos.ops` and is not exact.

        If the result is not None, `variant` or, after a split, `after_collective` returns the updates' new values.
        ``scattered`` maps inputs and shared variables with divided rows to the axis of their rows.

        Raises ArgumentValueError if a condition or number of steps that controls collectives differs between ranks, if
        the mode repeats operations (DebugMode), or if an inner graph other than a scan's contains a collective.
        """
        return None

    # -- placements ----------------------------------------------------------------------------------------------

    def placed(self, snapshot: Any, shards: Mapping[Any, Shard]) -> Optional[List[Placement]]:
        """Return the placements of the outputs and of the updates' new values; None if the engine cannot trace rows.

        ``shards`` maps inputs and shared variables with divided rows to their placements; all others are replicated.
        """
        return None

    def with_late_outputs(
        self, snapshot: Any, shards: Mapping[Any, Shard], ops: Sequence[Any]
    ) -> Tuple[Any, Optional[List[Placement]]]:
        """Return a snapshot whose outputs are rounded as late as possible, and the placements described by `placed`.

        Used for functions that are not exact. Their partials are returned unrounded (see `output_types`), unless
        ``ops`` requests another op for them. If a dtype rules out partials, as for a truncated sum, and the op in
        ``ops`` is MISSING, a collective computes the value.
        """
        return snapshot, self.placed(snapshot, shards)

    def has_late_outputs(self, snapshot: Any) -> bool:
        """Return whether the snapshot's outputs differ from the compiled function's, so that ranks call a `variant`."""
        return False

    def output_types(self, snapshot: Any) -> Optional[List[Optional[ArrayType]]]:
        """Return the types of the outputs that ranks compute; None if they equal the types in `outputs`."""
        return None

    def with_any_rows(
        self, inputs: Sequence[Any], axes: Sequence[Optional[int]], givens: Any, rows: int
    ) -> Tuple[List[Any], Any]:
        """Return inputs whose types leave the number of rows open, and givens that substitute them for the originals.

        ``axes`` contains the row axis, or None, for each of the first inputs. The types of the original inputs may fix
        the length of this axis at ``rows``.
        """
        return list(inputs), givens

    def with_rows(
        self, snapshot: Any, shards: Mapping[Any, Shard], rows: Optional[int], own: Optional[Sequence[int]] = None
    ) -> Tuple[Any, List[str]]:
        """Return a snapshot that accepts any number of rows, not only ``rows``, and descriptions of changed operations.

        Results for ``rows`` rows are unchanged. If ``rows`` is None, only operations that store a number of rows
        as a property are changed. For functions that are not exact, ``own`` lists the positions (outputs, then
        updates) of values that may depend on a rank's own rows.
        """
        if rows is not None:
            raise ArgumentTypeError(
                "rows", f"None, because engine {self.name!r} cannot identify numbers of rows", repr(rows)
            )
        return snapshot, []

    def sharding(self, snapshot: Any, shards: Mapping[Any, Shard], in_parts: bool = False) -> Optional[Sharding]:
        """Return the placements of a function's values and its collectives, with ``in_parts`` those of a `variant`."""
        return None

    def completed(self, snapshot: Any, shards: Mapping[Any, Shard]) -> Tuple[Any, List[Placement]]:
        """Return the snapshot of an exact function, with collectives where needed, and the placements of its outputs.

        Raises ArgumentValueError, which names the update and the reason, if an update cannot be computed exactly.
        """
        raise ArgumentTypeError("exact", f"False, because engine {self.name!r} cannot trace rows", "True")

    def is_operation(self, cls: Any) -> bool:
        """Return whether a class is an operation class of this engine's graphs."""
        return False

    def add_rule(self, cls: Any, make: Callable[[Any, Sequence[int], Sequence[int]], PlacementRule]) -> None:
        """Register a rule for a user-defined operation class; raise an error if it has or inherits a built-in rule.

        ``make`` maps a node and the numbers of dimensions of its inputs and of its outputs to the rule.
        """
        raise ArgumentTypeError("rule", "an engine that supports user-defined operations", repr(self.name))

    def common_streams(self, snapshot: Any) -> List[Any]:
        """Return the random states that all ranks of an exact function use to draw identical numbers."""
        return []

    # -- random streams ------------------------------------------------------------------------------------------

    @abstractmethod
    def is_random(self, shared: Any) -> bool:
        """Return whether the shared variable stores the state of a random number generator."""

    @abstractmethod
    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        """Return the state ``jumps`` long jumps after ``value`` in the same sequence; ``value`` is unchanged.

        A long jump exceeds any program's number of draws. Jumps are additive, and commute with draws. With ``jumps=0``,
        the result is a copy.
        """

    @abstractmethod
    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        """Return the initial state of the ``index``-th random stream for this seed, of the same kind as ``value``."""

    # -- devices -------------------------------------------------------------------------------------------------

    @staticmethod
    def is_on_device(value: Any) -> bool:
        """Return whether a value is an array on a device."""
        return False

    def to_host(self, value: Any) -> Any:
        """Copy a device array to the host; return anything else unchanged."""
        return np.asarray(value) if self.is_on_device(value) else value

    def for_program(self, value: Any) -> Any:
        """Return a variable's value in the form that the program's own functions need, if ranks store another form."""
        return value

    def check_devices(self) -> str:
        """Return a sentence that explains why devices cannot be used, with the remedy; "" if they can."""
        return f"the engine {self.name!r} uses no devices"

    def foreign_device(self) -> str:
        """Describe the code that opened a device in this process without `open_device`; "" if there is none."""
        return ""

    def opened_device(self) -> Optional[str]:
        """Return the name of the device opened by `open_device`; None if it has not opened any."""
        return None

    def open_device(self, name: str) -> Any:
        """Open the device for later use by this process and return its context; failures quote the driver's message."""
        raise SynkhronosError(self.check_devices())

    # -- transfer to other processes -----------------------------------------------------------------------------

    def watch_modules(self, tell: Optional[Callable[[str], object]]) -> None:  # noqa: B027, nothing by default
        """Call ``tell`` with each file of compiled code that this process loads or has loaded; None stops the calls."""

    def preload(self, file: str) -> None:  # noqa: B027, nothing by default
        """Load compiled code reported by another process, to make `loads` faster; callers ignore errors."""

    def constants(self, compiled: Any) -> List[np.ndarray[Any, Any]]:
        """Return the function's constant arrays, which ranks can share because they are never overwritten."""
        return []

    @abstractmethod
    def dumps(
        self,
        compiled: Sequence[Any],
        numbers: Mapping[Hashable, int],
        variables: Mapping[int, int],
        constants: Mapping[int, Any],
    ) -> bytes:
        """Pickle compiled functions so that `loads` connects them to the rank's replicas of their shared variables.

        ``numbers`` maps the `identity` of each storage that exists on the ranks to a number; its value is not sent.
        ``variables`` maps the ``id`` of shared variables to numbers. ``constants`` maps the ``id`` of each array from
        the method `constants` to the array's address in shared memory.
        """

    @abstractmethod
    def loads(
        self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray[Any, Any]]
    ) -> List[Any]:
        """Load functions from `dumps`; ``replicas`` maps numbers to variables, and ``constant`` addresses to arrays."""
