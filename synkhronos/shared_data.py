"""Arrays in OS shared memory that functions and collectives take without a copy."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentTypeError, ArgumentValueError, StateError
from .memory import values
from .memory.backings import PoolBacking, Storage
from .memory.handles import FileHandle, Handle, NameHandle
from .memory.pool import Pool, as_shape
from .program.program import PROGRAM


class Data:
    """An array in OS shared memory, which every rank sees; made by `data`.

    It reads and writes like a NumPy array: ``d[rows]``, ``d[rows] = values``, ``len(d)``, ``np.asarray(d)`` (no copy).
    Its dtype and number of dimensions never change, its shape does. The array is C-contiguous in memory, unless it is
    a view of a mapped file.

    Parameters
    ----------
    pool : Pool
        Where its memory comes from.
    value, var, dtype, ndim, shape, minibatch, force_cast, oversize, name, share_as, constant
        As for `data`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> d = synk.data([1.0, 2.0, 3.0], oversize=2, name="d")
    >>> d[0] = 5
    >>> d[d.data > 2]
    array([5., 3.])
    >>> d.alloc_size
    6
    >>> d.set_length(6)                             # moves nothing
    >>> d.data
    array([5., 2., 3., 0., 0., 0.])
    """

    def __init__(
        self,
        pool: Pool,
        value: Any = None,
        var: Any = None,
        dtype: Any = None,
        ndim: Optional[int] = None,
        shape: Union[int, Sequence[int], None] = None,
        minibatch: bool = False,
        force_cast: bool = False,
        oversize: float = 1,
        name: Optional[str] = None,
        *,
        share_as: Optional[str] = None,
        constant: bool = False,
    ) -> None:
        if constant and (value is None or share_as is not None):
            raise ArgumentValueError(
                "constant",
                "False without a value, or with share_as",
                repr(constant),
                "nothing can be written later, nor by other programs",
            )
        dtype, ndim, sizes = values.declared(var, dtype, ndim, shape)
        oversize = values.as_oversize(oversize)
        self.name = getattr(var, "name", None) if name is None else name
        self.minibatch = minibatch
        array = None
        if value is None:
            self._storage = Storage(pool, *values.known(dtype, ndim))
        else:
            array, typed = _as_array(value)
            self._storage = Storage(pool, array.dtype if dtype is None else dtype, array.ndim if ndim is None else ndim)
            self._check(array, typed, force_cast)
            if sizes not in (None, array.shape):
                raise ArgumentValueError("shape", f"that of the value, {array.shape}", str(sizes), "leave it out")
        shown = (self.shape if sizes is None else sizes) if array is None else array.shape
        if share_as is not None:
            array = None if array is None else np.asarray(array, self.dtype)  # may fail: before there is a name
            self._storage.name(share_as, shown, oversize)
        if array is None:
            self._storage.reshape(shown, oversize)
        else:
            self._storage.store(array, oversize)
        if constant:
            self._storage.seal()

    @classmethod
    def over(cls, pool: Pool, memory: NDArray[Any], array: NDArray[Any]) -> Data:
        """Return a Data that shows an array which lies at the start of some memory of the pool already."""
        data = cls.__new__(cls)
        data.name, data.minibatch = None, False
        data._storage = Storage(pool, array.dtype, array.ndim)
        data._storage.backing = PoolBacking(pool, memory, array)
        return data

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        notes = (", minibatch" if self._minibatch else "") + (", constant" if self.constant else "")
        notes += self._storage.backing.note
        return f"<Data{name}: {self.dtype} {self.shape}{notes}>"

    def __copy__(self) -> Data:
        """Return another Data that holds a copy of the value, in memory of its own."""
        return Data(self._storage.pool, np.array(self.data), minibatch=self._minibatch, name=self.name)

    def __deepcopy__(self, memo: Any) -> Data:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled, as its memory is this program's: pickle np.array(data) instead")

    @property
    def data(self) -> NDArray[Any]:
        """The array itself. Views of it keep the memory that they show when the Data moves elsewhere."""
        array = self._storage.backing.array
        if array is None:
            remedy = "make another one" if self.constant else "call set_value or set_shape first"
            raise StateError(f"{self!r} holds nothing since free_memory(): {remedy}")
        return array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, which never changes."""
        return self._storage.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions, which never changes."""
        return len(self._storage.backing.shape)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape; no rows after `free_memory`."""
        return self._storage.backing.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        array = self._storage.backing.array
        return 0 if array is None else array.size

    @property
    def alloc_size(self) -> int:
        """The number of elements that there is memory for: growing up to here moves nothing."""
        memory = self._storage.backing.memory
        return self.size if memory is None or not self.dtype.itemsize else memory.nbytes // self.dtype.itemsize

    @property
    def constant(self) -> bool:
        """Whether this is read-only, and other hosts are sent it once."""
        return self._storage.is_constant

    @property
    def minibatch(self) -> bool:
        """Whether this holds just the current batch: its row j belongs to the j-th row that ``batch`` selects."""
        return self._minibatch

    @minibatch.setter
    def minibatch(self, minibatch: bool) -> None:
        if not isinstance(minibatch, (bool, np.bool_)):
            raise ArgumentTypeError("minibatch", "True or False", repr(minibatch))
        self._minibatch = bool(minibatch)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Data of 0 dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __getitem__(self, rows: Any) -> Any:
        return self.data[rows]

    def __setitem__(self, rows: Any, values: Any) -> None:
        self._check_writable()
        self.data[rows] = values

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NDArray[Any]:
        array = self.data
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ArgumentValueError("dtype", f"{array.dtype}, as nothing is to be copied", str(np.dtype(dtype)))
            return array.astype(dtype)
        return array.copy() if copy else array

    def set_value(self, value: Any, force_cast: bool = False, oversize: float = 1) -> None:
        """Hold another value, of any shape with the same number of dimensions.

        It is copied into the memory that is there, if it fits; else into new memory, and the old is given back when
        its last view dies. A ``np.memmap``, or a path to a ``.npy`` file, of the right dtype is mapped instead. A file
        that was mapped until now is left as it is: only indexing (``d[rows] = values``) writes into files.

        Parameters
        ----------
        value : array_like, Data, np.memmap or path
            Of a dtype that converts without loss, as for `data`.
        force_cast : bool
            Convert any dtype to that of this Data, even with loss; see `data`.
        oversize : float
            In [1, 2]: if new memory is needed, take so many times as much.

        Raises
        ------
        TypeError
            The dtype does not fit.
        ValueError
            The number of dimensions does not fit, or memory with a name (`share_as`) has no room for the value.
        StateError
            It is constant.
        SharedMemoryError
            The memory cannot be allocated. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0, 3.0])
        >>> d.set_value([4, 5])
        >>> d
        <Data: float64 (2,)>
        """
        self._check_writable()
        oversize = values.as_oversize(oversize)
        array, typed = _as_array(value)
        self._check(array, typed, force_cast)
        self._storage.store(array, oversize)

    def set_length(self, n: int, oversize: float = 1) -> None:
        """Change the number of rows: `set_shape` with the other sizes as they are.

        Parameters
        ----------
        n : int
            Rows beyond it are dropped; new ones are 0.
        oversize : float
            In [1, 2]: if new memory is needed, take so many times as much.

        Raises
        ------
        ValueError
            There are no dimensions, `n` is negative, or memory with a name (`share_as`) has no room for it.
        StateError
            It is constant.
        SharedMemoryError
            The memory cannot be allocated. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0])
        >>> d.set_length(3)
        >>> d.data
        array([1., 2., 0.])
        """
        if not self.shape:
            raise ArgumentValueError("n", "no length, because a Data of 0 dimensions has no rows", repr(n))
        self.set_shape((n, *self.shape[1:]), oversize)

    def set_shape(self, shape: Union[int, Sequence[int]], oversize: float = 1) -> None:
        """Change the shape. What old and new shape have in common is kept, the rest is 0.

        Parameters
        ----------
        shape : int or sequence of int
            As many sizes as there are dimensions.
        oversize : float
            In [1, 2]: if new memory is needed, take so many times as much.

        Raises
        ------
        ValueError
            Another number of dimensions, a negative size, or memory with a name (`share_as`) has no room for it.
        StateError
            It is constant.
        SharedMemoryError
            The memory cannot be allocated. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([[1, 2], [3, 4]])
        >>> d.set_shape((1, 3))
        >>> d.data
        array([[1, 2, 0]])
        """
        self._check_writable()
        sizes, oversize = as_shape(shape), values.as_oversize(oversize)
        if len(sizes) != self.ndim:
            raise ArgumentValueError("shape", f"{self.ndim} dimensions", str(sizes))
        self._storage.reshape(sizes, oversize)

    def condition_data(self, value: Any, force_cast: bool = False) -> NDArray[Any]:
        """Return the array that `set_value` would store, and store nothing.

        Parameters
        ----------
        value : array_like, Data, np.memmap or path
            As for `set_value`.
        force_cast : bool
            Convert any dtype, even with loss.

        Returns
        -------
        np.ndarray
            Of this Data's dtype and number of dimensions; `value` itself if it is such an array.

        Raises
        ------
        TypeError, ValueError
            As for `set_value`.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0], dtype="float32")
        >>> d.condition_data([3, 4])
        array([3., 4.], dtype=float32)
        """
        array, typed = _as_array(value)
        self._check(array, typed, force_cast)
        return array if self._storage.maps(array) else np.asarray(array, self.dtype, order="C")

    def free_memory(self) -> None:
        """Give the memory back (when its last view dies), and its name.

        The Data has no rows then, and holds nothing until `set_value`, `set_length` or `set_shape` (for ever, if it is
        constant).
        """
        self._storage.free()

    def unshare(self) -> None:
        """Take the name `share_as` away; the value stays."""
        self._storage.backing.unlink()

    def handle(self) -> Union[Handle, FileHandle, NameHandle]:
        """Return the handle by which other ranks attach the array.

        Raises
        ------
        StateError
            After `free_memory`.
        ValueError
            The file that is mapped was deleted, replaced or shortened.
        """
        known = self._storage.backing.fixed_handle
        if known is None:
            _ = self.data  # raises if there is nothing
        return known or self._storage.handle()

    def _check_writable(self) -> None:
        if self.constant:
            raise StateError(f"{self!r} is never written: make another one, without constant=True if it is to change")

    def _check(self, value: NDArray[Any], typed: bool, force_cast: bool) -> None:
        label = "value" if self.name is None else f"value for Data {self.name!r}"
        values.check(label, value, typed, self.ndim, self.dtype, force_cast)


def data(
    value: Any = None,
    var: Any = None,
    dtype: Any = None,
    ndim: Optional[int] = None,
    shape: Union[int, Sequence[int], None] = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: Optional[str] = None,
    *,
    share_as: Optional[str] = None,
    constant: bool = False,
) -> Data:
    """Put an array into OS shared memory, where every rank sees it; functions take it without a copy.

    Parameters
    ----------
    value : array_like, Data, np.memmap or path, optional
        What to hold. A ``np.memmap`` (or a view of one), or a path to a ``.npy`` file, is mapped by every rank and not
        copied, if its dtype is right: data sets may be larger than memory. A path is opened for reading only; writing
        into a memmap of mode "r+" writes into its file.
    var : Theano variable, optional
        Gives dtype and number of dimensions (anything with ``dtype`` and ``ndim`` does), and the default of `name`.
    dtype : dtype, optional
        Default: that of `var`, else of `value`. Any that lies flat in memory.
    ndim : int, optional
        Default: that of `var`, else of `value`, else of `shape`.
    shape : int or sequence of int, optional
        Without a value: hold zeros of this shape. Default: no rows.
    minibatch : bool
        It holds just the current batch, in the order of the batch.
    force_cast : bool
        Convert any dtype, even with loss. Without it an array must convert safely (as
        ``np.can_cast`` says: float32 to float64, but not back). Python numbers, and lists of them, have no precision
        of their own: floats go into every float and complex dtype, integers into every dtype that holds them.
    oversize : float
        In [1, 2]: take so many times the memory, so that growing later moves nothing. A mapped file ignores it.
    name : str, optional
        Used in messages.
    share_as : str, optional
        A POSIX name like "/name", by which unrelated programs of the same user can open the memory until `close` (or
        until the Data is dropped). It cannot grow beyond `alloc_size`. Always a copy.
    constant : bool
        It is read-only: value and shape never change. With several hosts, each gets the whole array when one of its
        ranks first uses it, once in a session, and no row of it travels after that. Without it, rows travel with
        every call that takes them, since they may have changed.

    Returns
    -------
    Data

    Raises
    ------
    TypeError
        The dtype of the value does not fit, is not known, or holds Python objects.
    ValueError
        Dimensions that do not agree, `oversize` out of range, a name that exists, a file that cannot be mapped, nothing
        that could be constant.
    SharedMemoryError
        The memory cannot be allocated.

    Examples
    --------
    >>> import synkhronos as synk
    >>> x = synk.data([[1, 2], [3, 4]], dtype="float32", name="x")
    >>> x
    <Data 'x': float32 (2, 2)>
    >>> x.set_length(3)
    >>> x[2] = x[0] + x[1]
    >>> np.asarray(x)
    array([[1., 2.],
           [3., 4.],
           [4., 6.]], dtype=float32)
    """
    return Data(
        PROGRAM.pool,
        value,
        var,
        dtype,
        ndim,
        shape,
        minibatch,
        force_cast,
        oversize,
        name,
        share_as=share_as,
        constant=constant,
    )


def _as_array(value: Any) -> Tuple[NDArray[Any], bool]:
    """Return the value as an array, and whether it came with a dtype of its own."""
    return (value.data, True) if isinstance(value, Data) else values.as_array(value)
