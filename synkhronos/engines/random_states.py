"""The states of random number generators: further along their sequence, or at its beginning.

Every rank must draw numbers of its own, so its streams start *long jumps*
apart. A stream that has been jumped stays on the one sequence of its
generator, so two ranks draw the same numbers only after as many draws as the
jump is long; of streams with different seeds that is only probable::

    sequence  ----|---------------|---------------|------------->
                  rank 0 draws    rank 1 draws    rank 2 draws
                  ->              ->              ->
                  |<- long jump ->|
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError

# MRG31k3p, the generator of Theano's MRG_RandomStreams: two recurrences of order 3,
#     x[n] = 2^22 x[n-2] + (2^7 + 1) x[n-3]     mod M1
#     y[n] = 2^15 y[n-1] + (2^15 + 1) y[n-3]    mod M2
# (P. L'Ecuyer, R. Touzin, "Fast combined multiple recursive generators with multipliers of the form a = +/-2^q +/-2^r",
# Winter Simulation Conference 2000). A state is (x[n], x[n-1], x[n-2], y[n], y[n-1], y[n-2]).
M1, M2 = 2**31 - 1, 2**31 - 21069
STEP_MATRIX_1 = np.array([[0, 2**22, 2**7 + 1], [1, 0, 0], [0, 1, 0]], np.uint64)
STEP_MATRIX_2 = np.array([[2**15, 0, 2**15 + 1], [1, 0, 0], [0, 1, 0]], np.uint64)
#: log2 of the steps between two rows of one state, and between two streams (Theano's rng_mrg.py).
LOG2_ROW_STEPS, LOG2_STREAM_STEPS = 72, 134
#: log2 of the steps of a long jump.
LOG2_JUMP_STEPS = 166


def jumped_mrg(state: NDArray[Any], jumps: int) -> NDArray[Any]:
    """Return the state ``jumps`` times 2^166 steps further.

    A step multiplies each half of a row by a matrix, so 2^k steps multiply it by the matrix's 2^k-th power modulo M1
    or M2 (P. L'Ecuyer, R. Simard, E. J. Chen, W. D. Kelton, "An object-oriented random-number package with many long
    streams and substreams", Operations Research 50(6), 2002). The period is about 2^185. Theano puts the rows of a
    state 2^72 steps apart and the streams of a program 2^134; with ranks 2^166 apart there is room for 2^32 streams
    per rank and for 2^19 ranks.

    Parameters
    ----------
    state : int array with shape (rows, 6)
        Is not changed.
    jumps : int
        How many; 0 returns a copy.

    Returns
    -------
    int array with shape (rows, 6)
        Of the same dtype.

    Examples
    --------
    >>> state = np.array([[1, 2, 3, 4, 5, 6]], "int32")
    >>> bool((jumped_mrg(jumped_mrg(state, 2), 3) == jumped_mrg(state, 5)).all())
    True
    """
    return _advanced(state, LOG2_JUMP_STEPS, jumps)


def seeded_mrg(like: NDArray[Any], seed: int, index: int) -> NDArray[Any]:
    """Return the state that the ``index``-th stream of ``MRG_RandomStreams(seed)`` starts from.

    Parameters
    ----------
    like : int array with shape (rows, 6)
        What dtype and shape are taken from.
    seed : int
        If Theano would refuse it (0, or too large), six numbers are derived from it.
    index : int
        How many streams the program has made before.

    Returns
    -------
    int array with shape (rows, 6)
    """
    first = np.full(6, seed) if 0 < seed < M2 else np.random.SeedSequence(seed).generate_state(6) % (M2 - 1) + 1
    rows = _advanced(first[np.newaxis], LOG2_STREAM_STEPS, index)
    while len(rows) < len(like):  # row i is i * 2^72 steps after the first
        rows = np.concatenate([rows, _advanced(rows, LOG2_ROW_STEPS, len(rows))])
    seeded: NDArray[Any] = rows[: len(like)].astype(like.dtype)
    return seeded


def _advanced(state: NDArray[Any], log2: int, times: int) -> NDArray[Any]:
    """Return the state ``times * 2^log2`` steps further."""
    advanced = np.empty_like(state)
    for half, step, modulus in ((np.s_[:, :3], STEP_MATRIX_1, M1), (np.s_[:, 3:], STEP_MATRIX_2, M2)):
        advanced[half] = _product(state[half], _power(step, times << log2, modulus).T, modulus)
    return advanced


def _power(matrix: NDArray[Any], exponent: int, modulus: int) -> NDArray[Any]:
    result = np.eye(3, dtype=np.uint64)
    while exponent:
        if exponent & 1:
            result = _product(result, matrix, modulus)
        matrix = _product(matrix, matrix, modulus)
        exponent >>= 1
    return result


def _product(one: NDArray[Any], other: NDArray[Any], modulus: int) -> NDArray[Any]:
    # Numbers below 2^31: three products of them fit into 64 bits without a sign, not into 63.
    return one.astype(np.uint64) @ other.astype(np.uint64) % np.uint64(modulus)


def jumped_random_state(state: np.random.RandomState, jumps: int) -> np.random.RandomState:
    """Return a RandomState ``jumps`` times 2^128 numbers further, by ``numpy.random.MT19937.jumped``.

    Parameters
    ----------
    state : numpy.random.RandomState
        Is not changed.
    jumps : int
        How many; 0 returns a copy. Further on, the second number of a pair of normal ones, which RandomState keeps for
        the next call, is forgotten.

    Returns
    -------
    numpy.random.RandomState

    Raises
    ------
    ArgumentTypeError
        If the RandomState draws from a generator other than its own, MT19937.

    Examples
    --------
    >>> state = np.random.RandomState(1)
    >>> further = jumped_random_state(state, 1)
    >>> bool(state.rand() == further.rand())
    False
    """
    whole: Any = state.get_state(legacy=False)
    if whole["bit_generator"] != "MT19937":
        got = f"one over {whole['bit_generator']}"
        raise ArgumentTypeError("random state", "a RandomState over MT19937", got, "make it by RandomState(seed)")
    words, position = whole["state"]["key"], whole["state"]["pos"]
    # NumPy's jump takes the words for a ring that begins at the position and leaves such a ring, while RandomState
    # draws from them as from a block that is renewed as a whole: given to it as it is, the state would come out beside
    # the sequence. The words of a block are a ring that begins at 0.
    generator: Any = np.random.MT19937()
    generator.state = dict(whole, state={"key": words, "pos": len(words)})
    ring = generator.jumped(jumps).state["state"]
    result = np.random.RandomState(0)
    result.set_state(
        dict(
            whole,
            state={"key": np.roll(ring["key"], -ring["pos"]), "pos": position},
            has_gauss=0 if jumps else whole["has_gauss"],
        )
    )
    return result


def seeded_random_state(seed: int, index: int) -> np.random.RandomState:
    """Return the RandomState that the ``index``-th stream of a program starts from."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, index])))


def jumped_generator(state: np.random.Generator, jumps: int, argument: str = "random state") -> np.random.Generator:
    """Return a generator that many jumps ahead: 2^127 numbers each for PCG64, which NumPy and PyTensor take by default.

    Source: https://numpy.org/doc/stable/reference/random/parallel.html ("Jumping the BitGenerator state").

    Parameters
    ----------
    state : numpy.random.Generator
        Is not changed.
    jumps : int
        How many; 0 returns a copy.
    argument : str
        What messages call the state.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    ArgumentTypeError
        If its bit generator has no jumps, as SFC64.

    Examples
    --------
    >>> state = np.random.default_rng(1)
    >>> further = jumped_generator(state, 1)
    >>> bool(state.random() == further.random())
    False
    """
    bits: Any = state.bit_generator
    if jumps and not hasattr(bits, "jumped"):
        got, hint = type(bits).__name__, "make it by numpy.random.default_rng(seed)"
        raise ArgumentTypeError(argument, "a generator that can jump: PCG64, Philox or MT19937", got, hint)
    return np.random.Generator(bits.jumped(jumps)) if jumps else copy.deepcopy(state)


def seeded_generator(state: np.random.Generator, seed: int, index: int) -> np.random.Generator:
    """Return the generator, of the same kind, that the ``index``-th stream of a program starts from."""
    kind: Any = type(state.bit_generator)
    return np.random.Generator(kind(np.random.SeedSequence([seed, index])))
