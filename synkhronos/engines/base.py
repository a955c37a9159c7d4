"""What an engine must offer: the one interface through which the library touches symbolic programs.

An engine compiles functions, holds the values of shared variables, and sends
both to other processes. All code that depends on a particular engine is in
this package (the small NumPy engine of the tests is in `synkhronos.testing`).
The rest of the library works with the objects below, and with *variables*,
*shared variables* and *compiled functions* that it only hands back.

The module is long because it is one interface, most of it docstrings.
"""

from __future__ import annotations

import copy
import enum
import weakref
from abc import ABC, abstractmethod
from typing import Any, Callable, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, SynkhronosError
from ..reductions import Accumulator, ReduceOp
from ..sharding import Placement, Rule, Shard
from . import get, home_of


class ArrayType(NamedTuple):
    """The static type of a dense array."""

    dtype: np.dtype[Any]
    ndim: int
    broadcastable: Tuple[bool, ...]  # True for a dimension whose length is known to be 1

    @property
    def words(self) -> str:
        """Return what messages call it.

        Examples
        --------
        >>> ArrayType(np.dtype("float64"), 2, (False, False)).words
        'float64 matrix'
        """
        return f"{self.dtype} {('scalar', 'vector', 'matrix')[self.ndim] if self.ndim < 3 else f'tensor{self.ndim}'}"

    def axis_of_rows(self, axis: int, label: str) -> int:
        """Return an axis, from 0, along which an array of this type can have any number of rows.

        Raises
        ------
        ArgumentValueError
            If the type has no such axis, or a length of 1 along it.
        """
        if not -self.ndim <= axis < self.ndim:
            raise ArgumentValueError("axis", f"one that {label} has, a {self.words}", str(axis))
        if self.broadcastable[axis]:
            raise ArgumentValueError("axis", f"one along which {label} may have any length", f"{axis}, broadcastable")
        return axis % self.ndim


class Input(NamedTuple):
    """An input of a compiled function, as its caller sees it."""

    variable: Any
    name: Optional[str]
    type: Optional[ArrayType]  # None if it is not a dense array (sparse, generic, ...)
    mutable: bool  # the function may destroy the array it is given
    has_default: bool
    default: Any
    spec: Any = None  # what else the engine must know to convert a value
    state: Any = None  # the shared variable that holds its value between calls, if it keeps one
    is_updated: bool = False  # whether a call leaves another value in it


class Output(NamedTuple):
    """An output of a compiled function."""

    variable: Any
    label: str  # its name in messages, e.g. "outputs[0] (loss)"
    type: Optional[ArrayType]
    key: Optional[str] = None  # if the function returns a dict


class Degree(enum.IntEnum):
    """How a value depends on the collectives inside its graph: ``avg`` of them if it is `AFFINE`, any if `OTHER`."""

    NONE = 0
    AFFINE = 1
    OTHER = 2

    def of_update(self, differs: bool) -> Degree:
        """Return that of an update of this degree, which depends on the rank's own rows or not: `Collectives`."""
        return Degree.OTHER if differs and self == Degree.AFFINE else self


class Cut(NamedTuple):
    """Where an exact function is cut for calls in slices: before it, slice by slice; after it, once.

    Attributes
    ----------
    ops : list of (str or None)
        Of every value that passes the cut: by what those of slices are put together; None if all are the same.
    late : list of int
        The outputs that are computed after the cut.
    why_not : str
        Why the function cannot be cut; "" if it can.
    remedy : str
        What the program may write instead, if that is known.
    """

    ops: List[Optional[str]]
    late: List[int]
    why_not: str
    remedy: str = ""


class Collectives(NamedTuple):
    """The collectives inside a function's graph (`synkhronos.ops`).

    Attributes
    ----------
    ops : list of ReduceOp
        By the collectives' numbers: the order in which every call comes to them (those that a condition leaves out,
        aside).
    common : list of bool
        For every variable in `Engine.updated_in`: whether all ranks update it, also those without rows: its new value
        depends on a collective, or on nothing that differs between ranks (a count of the steps).
    updates : list of Degree
        Likewise: how its new value depends on them. Of an affine function of averages, the mean over slices is the
        value on all their rows. `OTHER` also if it depends on the rank's own rows besides: slices weigh by these there,
        and by the rows of all ranks here.
    outputs : list of Degree
        The same of every output, in the order of `Engine.outputs`.
    cut : Cut, optional
        Of an exact function. Degrees do not matter for it.
    divides : bool
        Whether rows are divided inside (`synkhronos.ops.shard`), so that weights may be known only then.
    """

    ops: List[ReduceOp]
    common: List[bool]
    updates: List[Degree]
    outputs: List[Degree]
    cut: Optional[Cut] = None
    divides: bool = False


class Inside(NamedTuple):
    """A collective inside a function.

    Attributes
    ----------
    op : str
    variables : list of str
        What it reduces, as messages call it, and of which type.
    updates : list of str
        The shared variables whose updates wait for it, as messages call them.
    """

    op: str
    variables: List[str]
    updates: List[str]


class Sharding(NamedTuple):
    """How a function lies over the ranks.

    Attributes
    ----------
    inputs, outputs, updates : list of Placement
        In the order of `Engine.inputs`, `outputs` and `updated_in`; of an update, that of the new value.
    collectives : list of Inside
        Those inside the function, by number.
    """

    inputs: List[Placement]
    outputs: List[Placement]
    updates: List[Placement]
    collectives: List[Inside]


class Engine(ABC):
    """Compiles functions and keeps shared variables; one object per process, without state of a session.

    An implementer promises that a method which checks a value changes nothing,
    and that what it raises says argument, expected, got and what to do
    (`synkhronos.errors.ArgumentError`).
    """

    #: The name under which `engines.get` finds the engine on every rank.
    name: str

    def __reduce__(self) -> Any:
        # By reference: every process has one object, which a rank finds even if it has not imported the module yet.
        return get, (self.name, home_of(self.name))

    # -- recognising ---------------------------------------------------------------------------------------------

    @abstractmethod
    def owns(self, thing: Any) -> bool:
        """Return whether ``thing`` (variable, shared variable, wrapped input or output) belongs to this engine."""

    @abstractmethod
    def is_shared(self, thing: Any) -> bool:
        """Return whether ``thing`` is a shared variable of this engine."""

    @abstractmethod
    def label(self, variable: Any, place: str = "unnamed") -> str:
        """Return what messages call the variable: its name, or its description if it has none.

        That of a shared variable is its place among others, ``updates[3]`` say, and its type: *updates[3] (float64
        matrix)*.
        """

    # -- shared variables ----------------------------------------------------------------------------------------

    @abstractmethod
    def shared_type(self, shared: Any) -> Optional[ArrayType]:
        """Return the type of the shared variable's value, or None if that is not a dense array."""

    @abstractmethod
    def identity(self, shared: Any) -> Hashable:
        """Return what two shared variables have in common if and only if they share one storage."""

    @abstractmethod
    def storage(self, shared: Any) -> List[Any]:
        """Return the storage of the variable: a list of one element, its value, that is the same for its whole life."""

    def get(self, shared: Any) -> Any:
        """Return the object that the variable holds now, on the host or on the device: not a copy."""
        return self.storage(shared)[0]

    def put(self, shared: Any, value: Any) -> None:
        """Make the variable hold this very object, without a copy and without a check.

        The caller has made it from `coerce`, `to_device` or `get`.
        """
        self.storage(shared)[0] = value

    @abstractmethod
    def coerce(self, shared: Any, value: Any, argument: str) -> np.ndarray[Any, Any]:
        """Return, on the host, the array that the variable would hold after ``set_value(value)``; changes nothing.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If the variable would refuse it (dtype, dimensions, broadcastable pattern).
        """

    def to_device(self, shared: Any, value: Any) -> Any:
        """Return an array where the variable keeps its value, for `put`: on the device, or on the host.

        ``value`` itself if it is there already, else a copy.
        """
        return self.to_host(value)

    def export(self, shared: Any) -> Any:
        """Return a copy of the variable's value on the host, as its own ``get_value`` does."""
        value = self.get(shared)
        return np.array(value) if self.is_on_device(value) else copy.deepcopy(value)

    def default_update(self, shared: Any) -> Any:
        """Return the new value that functions which use the variable give it by default; None if there is none."""
        return getattr(shared, "default_update", None)

    @abstractmethod
    def blueprint(self, shared: Any) -> Any:
        """Return a picklable description of the shared variable without its value."""

    @abstractmethod
    def build(self, blueprint: Any, value: Any, storage_of: Optional[Any] = None) -> Any:
        """Return the replica of a shared variable on this rank.

        Parameters
        ----------
        blueprint
            From `blueprint`, on the master.
        value
            What it holds at first; not copied.
        storage_of
            A replica with which it shares one storage; ``value`` is ignored then.
        """

    # -- functions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def compile(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        """Compile one function, exactly as the engine's own ``function`` would."""

    def draft(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        """Return what `compile` would, in a hurry: with the same inputs, outputs and refusals, but slow to call."""
        return self.compile(inputs, outputs, updates, givens, **kwargs)

    def with_states(self, inputs: Sequence[Any]) -> List[Any]:
        """Return inputs for `compile` in which each that keeps a value between calls has a shared variable for it.

        To be given to all compilations of one function, `draft` and `snapshot`: they have these variables in common.
        """
        return list(inputs)

    def is_implicit(self, given: Any) -> bool:
        """Return whether the caller cannot give a value for one of these inputs."""
        return False

    @abstractmethod
    def inputs(self, compiled: Any) -> List[Input]:
        """Return the inputs that a caller may give, in the order of the call."""

    def default(self, compiled: Any, given: Input) -> Any:
        """Return the value of an input with a default that the next call uses if none is given."""
        return given.default

    @abstractmethod
    def outputs(self, compiled: Any) -> List[Output]:
        """Return the outputs, flat, in the order of the call."""

    @abstractmethod
    def shareds(self, compiled: Any) -> List[Any]:
        """Return every shared variable that the function reads or updates, in a fixed order, each once.

        With those that hold its inputs' values between calls.
        """

    def states(self, compiled: Any) -> List[Any]:
        """Return those of the shared variables that hold inputs' values between calls."""
        return []

    @abstractmethod
    def convert(self, input: Input, value: Any, argument: str) -> Any:
        """Return ``value`` as the function takes it: converted, if the engine itself would convert it.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If the function would refuse it.
        """

    @abstractmethod
    def check(self, input: Input, dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
        """Raise what `convert` would raise for an array of that dtype and shape, without having one."""

    @abstractmethod
    def call(self, compiled: Any, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> List[Any]:
        """Call the function with one value per input and return the (chosen) outputs as a flat list.

        Scalars and 0-d results come as 0-d arrays, as the engine itself returns them. No output shares memory with an
        input, with what a shared variable holds or held, or with what the function writes to in its next call.
        """

    def on_ranks(self, compiled: Any) -> Any:
        """Return the function as ranks `call` it: what it computes on a device stays there.

        It shares the storage of all shared variables with ``compiled``, which is what the program itself calls.
        """
        return compiled

    def reference(self, owner: Any) -> Callable[[], Any]:
        """Return what returns ``owner.on_ranks``, a compiled function; None after it was dropped. It keeps neither."""
        return weakref.ref(owner.on_ranks)

    def present(self, compiled: Any, index: int, value: Any) -> Any:
        """Return the value of an output as the engine's own function returns it: on the host, or on the device."""
        return value

    def take(self, array: Any, rows: Any) -> Any:
        """Return the rows of a shared variable's value that a `Selection` selects, where the array is."""
        return rows.take(array)

    def accumulator(self, op: ReduceOp, keep_dtype: bool = False) -> Any:
        """Return an object like `Accumulator` for the values of slices, on the host or on the device."""
        return Accumulator(op, keep_dtype)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether an error of a function's call says that a device has no memory left."""
        return False

    def copy(self, compiled: Any, snapshot: Any, **kwargs: Any) -> Tuple[Any, Any]:
        """Return a copy of the function, made as the engine's own ``copy`` makes it, and the copy's snapshot."""
        raise ArgumentTypeError("copy", "an engine that copies functions", repr(self.name), "build another one")

    def function_name(self, compiled: Any) -> Optional[str]:
        """Return the function's name, for messages; None if it has none."""
        name: Optional[str] = compiled.name
        return name

    def trust_input(self, compiled: Any) -> bool:
        """Return whether the engine's own function takes its arguments unchecked."""
        return False

    def set_trust_input(self, compiled: Any, trust_input: bool) -> None:
        """Choose whether the engine's own function takes its arguments unchecked.

        Raises
        ------
        ArgumentValueError
            If the engine has no such functions.
        """
        if trust_input:
            hint = f"functions of the engine {self.name!r} always check their arguments"
            raise ArgumentValueError("trust_input", "False", repr(trust_input), hint)

    def free(self, compiled: Any) -> None:  # noqa: B027, nothing to do for an engine whose functions keep nothing
        """Free the memory that the function keeps between calls for its intermediate results."""

    def warm_up(self, compiled: Any) -> None:  # noqa: B027, nothing to do for an engine that compiles at once
        """Compile what the function would compile in its first call; computes and updates nothing.

        Ranks do this when they receive a function, so that the first command that calls it does not have to wait.
        """

    def profile(self, compiled: Sequence[Any]) -> Any:
        """Return what the engine's profiler has counted of some functions, picklable; None if they are not profiled."""
        return None

    def merged_profile(self, compiled: Sequence[Any], counts: Sequence[Any]) -> Any:
        """Return a profile of the engine's own kind.

        Parameters
        ----------
        compiled
            The functions, here.
        counts
            What `profile` has returned, on every rank, for its replicas of them (or of the first of them).
        """
        raise ArgumentTypeError("profile", f"False, as the engine {self.name!r} does not profile functions", "True")

    # -- other graphs of the same function -----------------------------------------------------------------------

    @abstractmethod
    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        """Return the givens as pairs of variables.

        A value that is not a variable (an array) becomes a shared variable here, so that all graphs of a function that
        are made with these pairs have it in common.
        """

    @abstractmethod
    def snapshot(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        """Keep the graph of a function as it is now, before any optimisation, for `variant`; compiles nothing.

        The givens are put in and the default updates collected: whatever happens later to them and to the program's
        variables, a variant is another graph of the function that `compile` makes now.

        Parameters
        ----------
        inputs, outputs, updates, givens, **kwargs
            As `compile` takes them; it has found no fault in them.
        """

    @abstractmethod
    def updated_in(self, snapshot: Any) -> List[Any]:
        """Return the shared variables that a call changes, default updates included, in a fixed order."""

    @abstractmethod
    def variant(self, snapshot: Any, sliced: bool, as_inputs: Sequence[Any]) -> Any:
        """Compile another graph of the function.

        Its inputs are those of the function, in the same order and with the same properties, and one more for each of
        ``as_inputs``. Its outputs, a list, are those of the function in the order of `outputs`.

        Parameters
        ----------
        snapshot
            From `snapshot`.
        sliced
            Compute updates, but leave them to the caller: the new values of all shared variables in `updated_in` that
            are not `is_random` are further outputs, in that order, computed from the values before the call. Only
            random states advance. (In a function with `collectives` all are outputs, whether sliced or not.) No output
            shares memory with a shared variable, with another output or with anything that the next call writes to.
        as_inputs
            Shared variables whose value the caller gives: wherever the graph or a new value refers to one of them,
            the input takes its place. One that is updated is still updated itself.

        Returns
        -------
        compiled
            As from `compile`.
        """

    def second_half(self, snapshot: Any, as_inputs: Sequence[Any]) -> Any:
        """Compile what a sliced call of an exact function (`Collectives.cut`) computes once, after all slices.

        Its inputs are those of `variant`, and then what passes the cut. Its outputs are those behind the cut, and then
        the new values of all variables in `updated_in` that are not `is_random`. The sliced `variant` of such a
        function has as outputs those of the function (anything for those behind the cut), then what passes the cut,
        and then the new values of random states.
        """
        raise ArgumentTypeError("exact", f"False, as the engine {self.name!r} has no exact functions", "True")

    @abstractmethod
    def shapes(self, snapshot: Any, as_inputs: Sequence[Any]) -> Any:
        """Compile a function of the outputs' shapes, which changes nothing.

        Its inputs are those of `variant`. Its outputs are one int64 vector for each output of the function, in their
        order, without entries for what is not a dense array.

        Parameters
        ----------
        snapshot
            From `snapshot`.
        as_inputs
            As for `variant`.
        """

    # -- collectives inside functions -----------------------------------------------------------------------------

    def all_reduce(self, variables: Sequence[Any], op: ReduceOp) -> List[Any]:
        """Return, for expressions of the graph, expressions of their values reduced over the ranks, of the same types.

        All of them are one collective. When it is computed it calls `in_graph.all_reduce`.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If a variable is not a dense array, the op is not defined for its dtype, or there are none.
        """
        raise ArgumentTypeError("all_reduce", "an engine with collectives inside functions", repr(self.name))

    def shard(self, variable: Any, axis: int) -> Any:
        """Return, for an expression of the graph, one of the rank's rows of it; it calls `in_graph.share`.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            If the variable is not a dense array, or has no such axis.
        """
        raise ArgumentTypeError("shard", "an engine that divides rows inside functions", repr(self.name))

    def collectives(self, snapshot: Any, scattered: Mapping[Any, int]) -> Optional[Collectives]:
        """Return what there is to know of the collectives inside a function; None if it has none.

        An exact function (see `completed`) has something to know even if it has none: all ranks make its updates.

        Parameters
        ----------
        snapshot
            From `snapshot`. If it has collectives, `variant` returns the new values of all variables in `updated_in`,
            random states too, whether sliced or not, and the collectives are numbered and ordered.
        scattered : dict from variables to int
            The inputs and shared variables whose rows differ between ranks, and along which axis these lie.

        Raises
        ------
        ArgumentValueError
            If ranks could come to different collectives: one is computed under a condition (``ifelse``) that depends on
            scattered values, or the function's mode computes operations more often than once (DebugMode).
        """
        return None

    # -- placements ----------------------------------------------------------------------------------------------

    def placed(self, snapshot: Any, shards: Mapping[Any, Shard]) -> Optional[List[Placement]]:
        """Return how every output, and the new value of every update, lies over the ranks; None if it cannot be told.

        Parameters
        ----------
        snapshot
            From `snapshot`.
        shards : mapping from variable to Shard
            The inputs and shared variables of which every rank has its own rows; all others are the same on all ranks.
        """
        return None

    def with_late_outputs(
        self, snapshot: Any, shards: Mapping[Any, Shard], ops: Sequence[Any]
    ) -> Tuple[Any, Optional[List[Placement]]]:
        """Return the snapshot of a function that is not exact, whose outputs depend on dtypes no more than they must.

        Parts that the function rounds are outputs before they are rounded (see `output_types`). What must not be
        computed from parts because of their dtypes, such as the truncated sum, is computed from the whole, by a
        collective inside. And the placements, as those of `placed`.

        Parameters
        ----------
        snapshot, shards
            As for `placed`.
        ops : sequence of (str, None or MISSING)
            Those that were given for outputs. Given ones count: only outputs that have none get collectives.
        """
        return snapshot, self.placed(snapshot, shards)

    def has_late_outputs(self, snapshot: Any) -> bool:
        """Return whether outputs are not those of the function that was compiled: ranks have to call a `variant`."""
        return False

    def output_types(self, snapshot: Any) -> Optional[List[Optional[ArrayType]]]:
        """Return the types of the outputs that ranks compute, as those of `outputs`; None if these are the same."""
        return None

    def with_any_rows(
        self, inputs: Sequence[Any], axes: Sequence[int], givens: Any, rows: int
    ) -> Tuple[List[Any], Any]:
        """Return inputs whose types do not say how many rows they have, and givens that have them in the others' place.

        Parameters
        ----------
        inputs, givens
            As `compile` takes them.
        axes : sequence of int
            Of the first inputs, along which axis they have rows.
        rows : int
            The number that types may say.
        """
        return list(inputs), givens

    def with_rows(
        self, snapshot: Any, shards: Mapping[Any, Shard], rows: Optional[int], own: Optional[Sequence[int]] = None
    ) -> Tuple[Any, List[str]]:
        """Return the snapshot of a function that is right for any number of rows, though one is written in the program.

        With as many rows as are written it computes the same.

        Parameters
        ----------
        snapshot, shards
            As for `placed`.
        rows : int, optional
            The number that is written. Without one, only operations are changed that have a number as a property.
        own : sequence of int, optional
            Of a function that is not exact: what each rank computes from its own rows alone, by the positions of
            outputs and then updates.

        Returns
        -------
        snapshot
        where : list of str
            The operations for which numbers are read as rows: in a few words each, with the named variables.
        """
        if rows is not None:
            raise ArgumentTypeError("rows", f"None with the engine {self.name!r}, which does not find them", repr(rows))
        return snapshot, []

    def sharding(self, snapshot: Any, shards: Mapping[Any, Shard]) -> Optional[Sharding]:
        """Return how a function lies over the ranks, its collectives with it; parameters as those of `placed`."""
        return None

    def completed(self, snapshot: Any, shards: Mapping[Any, Shard]) -> Tuple[Any, List[Placement]]:
        """Return the snapshot of a function that computes what the serial one does, with collectives where it must.

        And the placements of its outputs.

        Parameters
        ----------
        snapshot, shards
            As for `placed`.

        Raises
        ------
        ArgumentValueError
            If that is not possible for an update; names it and the operation.
        """
        raise ArgumentTypeError("exact", f"False, as the engine {self.name!r} cannot trace rows", "True")

    def is_operation(self, cls: Any) -> bool:
        """Return whether a class is one of operations in graphs of this engine."""
        return False

    def add_rule(self, cls: Any, make: Callable[[Any, Sequence[int], Sequence[int]], Rule]) -> None:
        """Give a class of operations, of the program's own, a rule.

        Parameters
        ----------
        cls : class
        make : callable
            From a node, and the numbers of dimensions of its inputs and of its outputs, to the rule.

        Raises
        ------
        ArgumentValueError
            If it has one.
        """
        raise ArgumentTypeError("rule", "an engine with operations of a program's own", repr(self.name))

    def common_streams(self, snapshot: Any) -> List[Any]:
        """Return the random states from which all ranks draw the same numbers in an exact function."""
        return []

    # -- random streams ------------------------------------------------------------------------------------------

    @abstractmethod
    def is_random(self, shared: Any) -> bool:
        """Return whether the shared variable holds the state of a random number generator."""

    @abstractmethod
    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        """Return the state ``jumps`` long jumps further on the same sequence; ``value`` itself is not changed.

        A long jump is further than any program draws. Jumps add up, and draws before and after a jump are the same
        numbers of the sequence.

        Parameters
        ----------
        shared
            The variable, which is `is_random`.
        value
            A state that it holds, on whichever rank.
        jumps
            How many; 0 returns an equal state.

        Raises
        ------
        ArgumentTypeError
            If the engine does not know how to jump a state of that kind; names the variable.
        """

    @abstractmethod
    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        """Return the state that the variable starts from as the ``index``-th random stream of a program.

        Parameters
        ----------
        shared
            The variable, which is `is_random`.
        value
            A state that it holds; dtype and shape are taken from it.
        seed
            The program's seed, not negative.
        index
            How many random streams the program has made before.

        Raises
        ------
        ArgumentTypeError
            If the state is of an unknown kind; names the variable.
        """

    # -- devices -------------------------------------------------------------------------------------------------

    @staticmethod
    def is_on_device(value: Any) -> bool:
        """Return whether a value is an array on a device."""
        return False

    def to_host(self, value: Any) -> Any:
        """Return an array on the host: a copy of one that is on a device, anything else as it is."""
        return np.asarray(value) if self.is_on_device(value) else value

    def check_devices(self) -> str:
        """Return what is missing for using devices at all, with the remedy, as a sentence; "" if nothing is."""
        return f"the engine {self.name!r} uses no devices"

    def foreign_device(self) -> str:
        """Return what has opened a device in this process, other than `open_device`; "" if nothing has."""
        return ""

    def opened_device(self) -> Optional[str]:
        """Return the name of the device that `open_device` has opened, or None."""
        return None

    def open_device(self, name: str) -> Any:
        """Open the device for this process, which uses it from then on; return its context.

        Raises
        ------
        SynkhronosError
            If it cannot be opened; says what the driver says.
        """
        raise SynkhronosError(self.check_devices())

    # -- travel --------------------------------------------------------------------------------------------------

    def watch_modules(self, tell: Optional[Callable[[str], object]]) -> None:  # noqa: B027, nothing by default
        """Call ``tell(file)`` for all compiled code that this process has loaded, and will load, from files.

        None ends that. An engine that loads none, as by default, does nothing.
        """

    def preload(self, file: str) -> None:  # noqa: B027, likewise
        """Load compiled code that another process has told of, so that `loads` need not; whatever it raises is lost."""

    def constants(self, compiled: Any) -> List[np.ndarray[Any, Any]]:
        """Return the arrays within a function that are never written to, so that ranks can share them."""
        return []

    @abstractmethod
    def dumps(
        self,
        compiled: Sequence[Any],
        numbers: Mapping[Hashable, int],
        variables: Mapping[int, int],
        constants: Mapping[int, Any],
    ) -> bytes:
        """Pickle compiled functions so that `loads` joins them to the ranks' replicas of their shared variables.

        Parameters
        ----------
        compiled
            The functions.
        numbers
            The number of every storage that the ranks know, by `identity`: a function that refers to it is joined to
            the rank's replica, and the value is not sent again.
        variables
            The number of every shared variable object, by ``id``.
        constants
            The places in shared memory of some of the functions' `constants`, by ``id``.

        Raises
        ------
        TypeError
            If something cannot be pickled; names the function and the object.
        """

    @abstractmethod
    def loads(
        self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray[Any, Any]]
    ) -> List[Any]:
        """Load what `dumps` made (bytes or a view of them) on a rank.

        Parameters
        ----------
        data
            From `dumps`.
        replicas
            The rank's shared variables by number.
        constant
            Returns the constant that is at a place in shared memory.
        """
