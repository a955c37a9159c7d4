"""Arrays in OS shared memory that functions and collectives take without a copy."""

from __future__ import annotations

import math
import os
import warnings
from operator import index
from typing import Any, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from .errors import StateError
from .memory import mapped_file
from .memory.handles import FileHandle, Handle, NameHandle
from .memory.pool import MAX_NDIM, Pool, as_shape
from .memory.posix_names import NamedMemory
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
    value, var, dtype, ndim, shape, minibatch, force_cast, oversize, name, share_as
        As for `data`.

    Attributes
    ----------
    name : str or None
        Stands in messages.

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
    ) -> None:
        dtype, ndim = _declared(var, dtype, ndim)
        oversize = _oversize(oversize)
        sizes = None if shape is None else as_shape(shape)
        if sizes is not None and ndim is not None and len(sizes) != ndim:
            raise ValueError(f"shape must have ndim={ndim} dimensions, got {sizes}")
        self.name = getattr(var, "name", None) if name is None else name
        self.minibatch = minibatch
        self._pool = pool
        self._memory: Optional[np.ndarray] = None  # the bytes of the allocation; None: a mapped file, or nothing
        self._named: Optional[NamedMemory] = None
        self._file: Optional[FileHandle] = None
        self._array: Optional[np.ndarray] = None  # what is shown; None after free_memory
        self._handle: Optional[Handle] = None  # of what is shown, once it was asked for
        if value is None:
            if dtype is None:
                raise TypeError("dtype is not known: give a value, a var, or a dtype")
            if sizes is None and ndim is None:
                raise TypeError("the number of dimensions is not known: give a value, a var, a shape, or ndim")
            array, sizes = None, (0,) * (ndim or 0) if sizes is None else sizes
            self._dtype, self._shape = dtype, (0,) * len(sizes)
        else:
            array, typed = _as_array(value)
            self._dtype = array.dtype if dtype is None else dtype
            self._shape = (0,) * (array.ndim if ndim is None else ndim)
            self._check(array, typed, force_cast)
            if sizes not in (None, array.shape):
                raise ValueError(f"shape {sizes} differs from the value's {array.shape}: leave it out")
            sizes = array.shape
        if share_as is not None:
            array = None if array is None else np.asarray(array, self._dtype)  # may fail: before there is a name
            self._named = pool.share(share_as, self._nbytes(sizes, oversize))
            self._memory = self._named.memory
        if array is None:
            self.set_shape(sizes, oversize)
        else:
            self._store(array, oversize)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        notes = ", minibatch" if self._minibatch else ""
        if self._array is None:
            notes += ", freed"
        if self._file is not None:
            notes += f", mapped from {self._file.path}"
        if self._named is not None and self._named.linked:
            notes += f", shared as {self._named.name}"
        return f"<Data{name}: {self._dtype} {self._shape}{notes}>"

    def __copy__(self) -> Data:
        """Return another Data that holds a copy of the value, in memory of its own."""
        return Data(self._pool, np.array(self.data), minibatch=self._minibatch, name=self.name)

    def __deepcopy__(self, memo: Any) -> Data:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled, because its memory is this program's: pickle np.array(data) instead"
        )

    # --- as an array ---

    @property
    def data(self) -> np.ndarray:
        """The array itself. Views of it keep the memory that they show when the Data moves elsewhere."""
        if self._array is None:
            raise StateError(f"{self!r} holds nothing since free_memory(): call set_value or set_shape first")
        return self._array

    @property
    def dtype(self) -> np.dtype:
        """The dtype, which never changes."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions, which never changes."""
        return len(self._shape)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape; no rows after `free_memory`."""
        return self._shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return 0 if self._array is None else self._array.size

    @property
    def alloc_size(self) -> int:
        """The number of elements that there is memory for: up to here growing moves nothing."""
        if self._memory is None or not self._dtype.itemsize:
            return self.size
        return self._memory.nbytes // self._dtype.itemsize

    @property
    def minibatch(self) -> bool:
        """Whether this holds just the current batch: its row j belongs to the j-th row that ``batch`` selects."""
        return self._minibatch

    @minibatch.setter
    def minibatch(self, minibatch: bool) -> None:
        if not isinstance(minibatch, (bool, np.bool_)):
            raise TypeError(f"minibatch must be True or False, got {minibatch!r}")
        self._minibatch = bool(minibatch)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a Data of 0 dimensions")
        return self._shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __getitem__(self, rows: Any) -> Any:
        return self.data[rows]

    def __setitem__(self, rows: Any, values: Any) -> None:
        self.data[rows] = values

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        array = self.data
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a Data of dtype {array.dtype} does not become {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # --- changes ---

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
            Convert any dtype to that of this Data, also where that loses something; see `data`.
        oversize : float
            In [1, 2]: where new memory is needed, take so many times of it.

        Raises
        ------
        TypeError
            The dtype does not fit.
        ValueError
            The number of dimensions does not fit; or the value is larger than memory with a name (`share_as`).
        SharedMemoryError
            The memory cannot be had. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0, 3.0])
        >>> d.set_value([4, 5])
        >>> d
        <Data: float64 (2,)>
        """
        oversize = _oversize(oversize)
        array, typed = _as_array(value)
        self._check(array, typed, force_cast)
        self._store(array, oversize)

    def set_length(self, n: int, oversize: float = 1) -> None:
        """Change the number of rows: `set_shape` with the other sizes as they are.

        Parameters
        ----------
        n : int
            The rows that were there and are beyond go; those that are new are 0.
        oversize : float
            In [1, 2]: where new memory is needed, take so many times of it.

        Raises
        ------
        ValueError
            No dimensions, a negative length, or more than memory with a name (`share_as`) holds.
        SharedMemoryError
            The memory cannot be had. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0])
        >>> d.set_length(3)
        >>> d.data
        array([1., 2., 0.])
        """
        if not self._shape:
            raise ValueError("a Data of 0 dimensions has no rows")
        self.set_shape((n, *self._shape[1:]), oversize)

    def set_shape(self, shape: Union[int, Sequence[int]], oversize: float = 1) -> None:
        """Change the shape. What old and new shape have in common is kept, all else is 0.

        Parameters
        ----------
        shape : int or sequence of int
            As many sizes as there are dimensions.
        oversize : float
            In [1, 2]: where new memory is needed, take so many times of it.

        Raises
        ------
        ValueError
            Other number of dimensions, a negative size, or more than memory with a name (`share_as`) holds.
        SharedMemoryError
            The memory cannot be had. After every error this Data is unchanged.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([[1, 2], [3, 4]])
        >>> d.set_shape((1, 3))
        >>> d.data
        array([[1, 2, 0]])
        """
        sizes, oversize = as_shape(shape), _oversize(oversize)
        if len(sizes) != self.ndim:
            raise ValueError(f"shape must have {self.ndim} dimensions, got {sizes}")
        old, same_rows = self._array, sizes[1:] == self._shape[1:]
        corner = tuple(slice(min(pair)) for pair in zip(sizes, self._shape))
        if old is not None and self._file is not None and same_rows and sizes <= self._shape:
            self._show(old[corner], None, self._file._replace(shape=sizes))  # fewer rows of the file
            return
        memory = self._memory_for(sizes, oversize)
        new: np.ndarray = np.ndarray(sizes, self._dtype, memory)
        if old is None:
            memory[: new.nbytes] = 0
        elif same_rows:  # the rows that are kept lie at the start, in the same order
            if memory is not self._memory:
                new[corner] = old[corner]
            memory[min(old.nbytes, new.nbytes) : new.nbytes] = 0
        else:
            kept = old[corner].copy() if memory is self._memory else old[corner]
            memory[: new.nbytes] = 0
            new[corner] = kept
        self._show(new, memory)

    def condition_data(self, value: Any, force_cast: bool = False) -> np.ndarray:
        """Return the array that `set_value` would store, and store nothing.

        Parameters
        ----------
        value : array_like, Data, np.memmap or path
            As for `set_value`.
        force_cast : bool
            Convert any dtype, also where that loses something.

        Returns
        -------
        np.ndarray
            Of this Data's dtype and number of dimensions; `value` itself where that is such an array.

        Raises
        ------
        TypeError, ValueError
            As `set_value`.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0], dtype="float32")
        >>> d.condition_data([3, 4])
        array([3., 4.], dtype=float32)
        """
        array, typed = _as_array(value)
        self._check(array, typed, force_cast)
        return array if self._maps(array) else np.asarray(array, self._dtype, order="C")

    def free_memory(self) -> None:
        """Give the memory back (when its last view dies), the name too.

        The Data has no rows then, and holds nothing until `set_value`, `set_length` or `set_shape`.
        """
        self.unshare()
        self._array = self._memory = self._named = self._file = self._handle = None
        self._shape = (0,) * min(1, self.ndim) + self._shape[1:]

    def unshare(self) -> None:
        """Take the name `share_as` away; the value stays."""
        if self._named is not None:
            self._named.unlink()

    def handle(self) -> Union[Handle, FileHandle, NameHandle]:
        """Return the handle by which other ranks attach the array.

        Raises
        ------
        StateError
            After `free_memory`.
        ValueError
            The file that is mapped was deleted, replaced or shortened.
        """
        if self._handle is not None:
            return self._handle
        array = self.data
        if self._file is not None:
            mapped_file.check(self._file)
            return self._file
        if self._named is not None:
            if self._named.linked:
                return self._named.handle(array)
            # Nobody can attach it any more: go on in the pool.
            memory = self._pool.allocate((self._nbytes(array.shape),), np.uint8)
            moved: np.ndarray = np.ndarray(array.shape, self._dtype, memory)
            moved[...] = array
            self._show(moved, memory)
        self._handle = self._pool.handle(self.data)
        return self._handle

    # --- within ---

    def _check(self, value: np.ndarray, typed: bool, force_cast: bool) -> None:
        """Raise unless the value may be stored: right number of dimensions, dtype equal or convertible."""
        label = "value" if self.name is None else f"value for Data {self.name!r}"
        _refuse_objects(value.dtype)
        if value.ndim != self.ndim:
            raise ValueError(f"{label}: expected {self.ndim} dimensions, got {value.ndim} (shape {value.shape})")
        if not (force_cast or _converts(value, typed, self._dtype)):
            raise TypeError(
                f"{label}: expected dtype {self._dtype} or one that converts to it without loss, got {value.dtype}: "
                "convert it, or pass force_cast=True"
            )

    def _maps(self, value: np.ndarray) -> bool:
        named = self._named is not None and self._named.linked
        return not named and value.dtype == self._dtype and mapped_file.is_mapped(value)

    def _store(self, value: np.ndarray, oversize: float) -> None:
        if self._maps(value):
            self._show(value, None, mapped_file.describe(value))
            return
        memory = self._memory_for(value.shape, oversize)
        if memory is self._memory and value.dtype != self._dtype:
            value = np.array(value, self._dtype)  # may fail: before anything is written
        array: np.ndarray = np.ndarray(value.shape, self._dtype, memory)
        np.copyto(array, value, casting="unsafe")  # right also where the value is a part of what it replaces
        self._show(array, memory)

    def _show(self, array: np.ndarray, memory: Optional[np.ndarray], file: Optional[FileHandle] = None) -> None:
        if memory is not self._memory:
            self._named = None
        self._array, self._memory, self._file, self._shape, self._handle = array, memory, file, array.shape, None

    def _memory_for(self, shape: Tuple[int, ...], oversize: float) -> np.ndarray:
        needed = self._nbytes(shape)
        if self._memory is not None:
            if needed <= self._memory.nbytes:
                return self._memory
            if self._named is not None and self._named.linked:
                raise ValueError(
                    f"shape {shape} needs {needed} bytes, but the shared memory {self._named.name} has "
                    f"{self._memory.nbytes}, and cannot grow because other programs may have it mapped: "
                    "make it with oversize, or call unshare() first"
                )
        return self._pool.allocate((self._nbytes(shape, oversize),), np.uint8)

    def _nbytes(self, shape: Tuple[int, ...], oversize: float = 1) -> int:
        size = 1
        for n in shape:
            size *= n
        return max(size, math.ceil(size * oversize)) * self._dtype.itemsize


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
        Convert any dtype, also where that loses something. Without it an array must convert safely (as
        ``np.can_cast`` says: float32 to float64, but not back). Python numbers, and lists of them, have no precision
        of their own: floats go into every float and complex dtype, integers into every dtype that holds them.
    oversize : float
        In [1, 2]: take so many times the memory, so that growing later moves nothing. A mapped file ignores it.
    name : str, optional
        Stands in messages.
    share_as : str, optional
        A POSIX name like "/name", by which unrelated programs of the same user can open the memory until `close` (or
        until the Data is dropped). It cannot grow beyond `alloc_size`. Always a copy.

    Returns
    -------
    Data

    Raises
    ------
    TypeError
        The dtype of the value does not fit, is not known, or holds Python objects.
    ValueError
        Dimensions that do not agree, `oversize` out of range, a name that exists, a file that cannot be mapped.
    SharedMemoryError
        The memory cannot be had.

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
    return Data(PROGRAM.pool, value, var, dtype, ndim, shape, minibatch, force_cast, oversize, name, share_as=share_as)


def _declared(var: Any, dtype: Any, ndim: Optional[int]) -> Tuple[Optional[np.dtype], Optional[int]]:
    """Return dtype and number of dimensions as far as the arguments say, None where they do not."""
    if dtype is not None:
        dtype = np.empty((0,), dtype).dtype  # with a length, where it is one of strings
        _refuse_objects(dtype)
    if ndim is not None:
        try:
            ndim = index(ndim)
        except TypeError:
            raise TypeError(f"ndim must be an integer, got {ndim!r}") from None
        if ndim < 0:
            raise ValueError(f"ndim must not be negative, got {ndim}")
        if ndim > MAX_NDIM:
            raise ValueError(f"ndim must be at most {MAX_NDIM}, got {ndim}")
    if var is None:
        return dtype, ndim
    if not isinstance(getattr(var, "ndim", None), int) or getattr(var, "dtype", None) is None:
        raise TypeError(f"var must be a Theano variable, or another thing with dtype and ndim, got {var!r}")
    if dtype is not None and dtype != np.dtype(var.dtype):
        raise ValueError(f"dtype={dtype} differs from the var's {var.dtype}: leave it out")
    if ndim is not None and ndim != var.ndim:
        raise ValueError(f"ndim={ndim} differs from the var's {var.ndim}: leave it out")
    _refuse_objects(np.dtype(var.dtype))
    return np.dtype(var.dtype), var.ndim


def _oversize(oversize: float) -> float:
    try:
        fits = 1 <= oversize <= 2  # False for NaN
    except (TypeError, ValueError, ArithmeticError):  # (the last out of Decimal("nan"))
        raise TypeError(f"oversize must be a number from 1 to 2, got {oversize!r}") from None
    if not fits:
        raise ValueError(f"oversize must be from 1 to 2, got {oversize}")
    return float(oversize)


def _refuse_objects(dtype: np.dtype) -> None:
    if dtype.hasobject:
        raise TypeError(
            f"expected a dtype that lies flat in memory, got {dtype}: Python objects, rows of unequal length and the "
            "like cannot be shared"
        )


def _as_array(value: Any) -> Tuple[np.ndarray, bool]:
    """Return the value as an array, and whether it came with a dtype of its own."""
    if isinstance(value, Data):
        return value.data, True
    if isinstance(value, (str, os.PathLike)):
        if isinstance(value, str) and not value.endswith(".npy"):
            raise ValueError(
                f"value: expected an array or the path of a .npy file, got {value!r}; save it with np.save, or give "
                "np.array(value) to hold a string"
            )
        return _open(value), True
    if isinstance(value, np.memmap):
        return value, True
    if hasattr(value, "dtype"):
        return np.asarray(value), True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of unequal length make an array of objects, which is refused later
        return np.asarray(value), False


def _open(path: Union[str, os.PathLike[str]]) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ValueError(f"value: cannot map {os.fspath(path)!r} as a .npy file: {error}") from None


def _converts(array: np.ndarray, typed: bool, dtype: np.dtype) -> bool:
    """Tell whether a value may become `dtype` without force; the rule is in `data`, under `force_cast`."""
    if np.can_cast(array.dtype, dtype, "safe"):
        return True
    if typed:
        return False
    if array.size == 0:
        return True
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= array.min() and array.max() <= limits.max)
    if not (array.dtype.kind in "iufc" and dtype.kind in "fc" and np.can_cast(array.dtype, dtype, "same_kind")):
        return False
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(dtype))[np.isfinite(array)].all())  # 1e300 is no float32
