"""Arrays in OS shared memory, which the ranks of the program's host use without copying."""

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
    """An array in OS shared memory, visible to every rank; created by `data`.

    It behaves like a NumPy array: ``d[rows]``, ``d[rows] = values``, ``len(d)``, ``np.asarray(d)`` (no copy). Its shape
    can change, but not its ``dtype`` or ``ndim``. The array is C-contiguous unless it is a view of a mapped file.

    Examples
    --------
    >>> import synkhronos as synk
    >>> d = synk.data([1.0, 2.0, 3.0], oversize=2, name="d")
    >>> d[0] = 5
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
        device: bool = False,
    ) -> None:
        if not isinstance(device, (bool, np.bool_)):
            raise ArgumentTypeError("device", "True or False", repr(device))
        constant = constant or bool(device)
        if constant and (value is None or share_as is not None):
            raise ArgumentValueError(
                "device" if device else "constant",
                "False without a value, or with share_as",
                "True",
                "a constant cannot be written later, nor by other programs",
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
                raise ArgumentValueError("shape", f"{array.shape}, the value's shape", str(sizes), "leave it out")
        shown = (self.shape if sizes is None else sizes) if array is None else array.shape
        if share_as is not None:
            array = None if array is None else np.asarray(array, self.dtype)  # may fail, so the name comes later
            self._storage.name(share_as, shown, oversize)
        if array is None:
            self._storage.reshape(shown, oversize)
        else:
            self._storage.store(array, oversize)
        if constant:
            self._storage.seal()
        if device:
            self._storage.put_on_devices()

    @classmethod
    def _over(cls, pool: Pool, memory: NDArray[Any], array: NDArray[Any]) -> Data:
        """Return a Data for an array at the start of a block of the pool's memory."""
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
        """Return another Data with a copy of the value in its own memory."""
        return Data(self._storage.pool, np.array(self.data), minibatch=self._minibatch, name=self.name)

    def __deepcopy__(self, memo: Any) -> Data:
        return self.__copy__()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled, because its memory belongs to this program: pickle np.array(data) instead"
        )

    @property
    def data(self) -> NDArray[Any]:
        """The NumPy array. If the Data moves to a new block, existing views keep the old memory."""
        array = self._storage.backing.array
        if array is None:
            remedy = "create another Data" if self.constant else "call set_value or set_shape first"
            raise StateError(f"{self!r} has no value after free_memory(): {remedy}")
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
        """The shape; its first size is 0 after `free_memory`."""
        return self._storage.backing.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        array = self._storage.backing.array
        return 0 if array is None else array.size

    @property
    def alloc_size(self) -> int:
        """The number of elements that fit into the allocated memory; growth up to this size does not move the array."""
        memory = self._storage.backing.memory
        return self.size if memory is None or not self.dtype.itemsize else memory.nbytes // self.dtype.itemsize

    @property
    def constant(self) -> bool:
        """Whether the array is read-only, so that it is sent to other hosts only once."""
        return self._storage.is_constant

    @property
    def minibatch(self) -> bool:
        """Whether the array contains only the current batch: row j belongs to the j-th row that ``batch`` selects."""
        return self._minibatch

    @minibatch.setter
    def minibatch(self, minibatch: bool) -> None:
        if not isinstance(minibatch, (bool, np.bool_)):
            raise ArgumentTypeError("minibatch", "True or False", repr(minibatch))
        self._minibatch = bool(minibatch)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Data with 0 dimensions")
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
                raise ArgumentValueError("dtype", f"{array.dtype}, because of copy=False", str(np.dtype(dtype)))
            return array.astype(dtype)
        return array.copy() if copy else array

    def set_value(self, value: Any, force_cast: bool = False, oversize: float = 1) -> None:
        """Replace the value; the shape may change, but not the number of dimensions.

        The value is copied into the existing memory if it fits, else into new memory; the old memory is released with
        its last view. An ``np.memmap``, or a path to a ``.npy`` file, is mapped instead if its dtype is that of the
        Data. Unlike ``d[rows] = values``, this leaves a previously mapped file unchanged.

        Parameters
        ----------
        value : array_like, Data, np.memmap or path
            The new value; its dtype must convert without loss, as for `data`.
        force_cast : bool
            Convert any dtype to this Data's dtype, even with loss; see `data`.
        oversize : float
            In [1, 2]: the size of new memory, if needed, relative to the value's size.

        Raises
        ------
        TypeError
            The conversion to this Data's dtype is not allowed.
        ValueError
            The number of dimensions differs, a file cannot be mapped, or named memory (`share_as`) is too small.
        StateError
            The Data is constant.
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
        """Change the number of rows; all other sizes stay unchanged.

        Parameters
        ----------
        n : int
            The new length. Rows beyond it are dropped, and added rows are 0.
        oversize : float
            As for `set_value`.

        Raises
        ------
        ValueError
            The Data has no dimensions, `n` is negative, or named memory (`share_as`) is too small.
        StateError, SharedMemoryError
            As for `set_value`.

        Examples
        --------
        >>> import synkhronos as synk
        >>> d = synk.data([1.0, 2.0])
        >>> d.set_length(3)
        >>> d.data
        array([1., 2., 0.])
        """
        if not self.shape:
            raise ArgumentValueError("n", "no length, because a Data with 0 dimensions has no rows", repr(n))
        self.set_shape((n, *self.shape[1:]), oversize)

    def set_shape(self, shape: Union[int, Sequence[int]], oversize: float = 1) -> None:
        """Change the shape. Elements in both the old and the new shape are kept, and added elements are 0.

        Parameters
        ----------
        shape : int or sequence of int
            One size for each dimension.
        oversize : float
            As for `set_value`.

        Raises
        ------
        ValueError
            The number of dimensions differs, a size is negative, or named memory (`share_as`) is too small.
        StateError, SharedMemoryError
            As for `set_value`.

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
            raise ArgumentValueError("shape", f"a shape with ndim={self.ndim}", str(sizes))
        self._storage.reshape(sizes, oversize)

    def condition_data(self, value: Any, force_cast: bool = False) -> NDArray[Any]:
        """Return the array that `set_value` would store, without storing it.

        Parameters
        ----------
        value, force_cast
            As for `set_value`.

        Returns
        -------
        np.ndarray
            With this Data's dtype and number of dimensions; `value` itself if it is such an array in C order.

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

    def use_huge_pages(self) -> int:
        """Move the data into pages of 2 MiB, which makes passes over data of many megabytes up to 10 percent faster.

        This takes 1 to 3 seconds per gigabyte, and pays if all rows are read hundreds of times, as by a sampler. The
        value stays the same. Files and memory with a name are not moved.

        Returns
        -------
        int
            The number of bytes moved: 0 before Linux 6.1, if no such pages are free, or if the data is smaller.

        Examples
        --------
        >>> import numpy as np, synkhronos as synk
        >>> synk.data(np.ones(10)).use_huge_pages()
        0
        """
        memory, pool = self._storage.backing.memory, self._storage.pool
        return pool.use_huge_pages(memory) if memory is not None and pool.owns(memory) else 0

    def free_memory(self) -> None:
        """Release the memory (once its last view is gone) and its name.

        The Data then has no rows and no value until the next `set_value`, `set_length` or `set_shape`. A constant Data
        cannot be used again.
        """
        self._storage.free()

    def unshare(self) -> None:
        """Remove the memory's name, set with `share_as`; the value remains."""
        self._storage.backing.unlink()

    def _handle(self) -> Union[Handle, FileHandle, NameHandle]:
        """Return the handle that other ranks use to attach the array.

        Raises `StateError` after `free_memory`, and `ValueError` if the mapped file was deleted, replaced or shortened.
        """
        known = self._storage.backing.fixed_handle
        if known is None:
            _ = self.data  # raises if there is no value
        return known or self._storage.handle()

    def _check_writable(self) -> None:
        if self.constant:
            raise StateError(f"{self!r} is read-only: create another Data, without constant=True if it must change")

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
    device: bool = False,
) -> Data:
    """Put an array into OS shared memory, visible to every rank; the ranks of this host use it without copying.

    Parameters
    ----------
    value : array_like, Data, np.memmap or path, optional
        The initial value. An ``np.memmap`` (or a view of one), or a path to a ``.npy`` file, is mapped by every rank
        rather than copied if it has the right dtype. Data sets may therefore be larger than memory. A path is opened
        read-only; writing into a memmap of mode "r+" writes into its file.
    var : Theano variable, optional
        Any object with ``dtype`` and ``ndim``; determines both, and the default of `name`.
    dtype : dtype, optional
        Any dtype without Python objects. Default: the dtype of `var`, else of `value`.
    ndim : int, optional
        Number of dimensions. Default: that of `var`, else of `value`, else of `shape`.
    shape : int or sequence of int, optional
        Without a value: create zeros of this shape. Default: no rows.
    minibatch : bool
        Whether the array contains only the current batch, in the order of the batch.
    force_cast : bool
        Convert any dtype, even with loss. By default, ``np.can_cast`` must allow the conversion: float32 to float64,
        but not the reverse. Python numbers, and lists of them, have no precision: floats convert to every float and
        complex dtype without overflow, and integers convert to every dtype that can represent them.
    oversize : float
        In [1, 2]: the size of the memory relative to the value's size, so that later growth does not move the array.
        Ignored for a mapped file.
    name : str, optional
        Used in messages.
    share_as : str, optional
        A POSIX name like "/name". Unrelated programs of the same user can open the memory by this name, until `close`
        or until the Data is dropped. The memory cannot grow beyond `alloc_size`. The value is always copied.
    constant : bool
        Make the array read-only, so that value and shape never change. Each other host receives the whole array once
        per session, when one of its ranks first uses it. The rows of other arrays are sent with every call.
    device : bool
        Make the array constant, and in sessions on JAX's devices, keep a copy of it on every device: calls then select
        their rows there, and send only the rows' numbers. It has no effect on files and in sessions of processes.

    Returns
    -------
    Data

    Raises
    ------
    TypeError
        The conversion to the dtype is not allowed, or the dtype is unknown or contains Python objects.
    ValueError
        Dimensions are inconsistent, `oversize` is out of range, the name already exists, the file cannot be mapped, or
        a constant has no value.
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
        device=device,
    )


def _as_array(value: Any) -> Tuple[NDArray[Any], bool]:
    """Return the value as an array, and whether the value has a dtype, unlike Python numbers."""
    return (value.data, True) if isinstance(value, Data) else values.as_array(value)
