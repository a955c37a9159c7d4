"""States of random number generators: initial states, and jumps ahead in a sequence.

Streams with different seeds could overlap, although this is improbable. The ranks' streams therefore start *long jumps*
apart on one sequence, and can overlap only if a rank draws all numbers of a jump::

    sequence  ----|---------------|---------------|------------->
                  rank 0 draws    rank 1 draws    rank 2 draws
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
#: log2 of the number of steps between two rows of one state, and between two streams (Theano's rng_mrg.py).
LOG2_ROW_STEPS, LOG2_STREAM_STEPS = 72, 134
LOG2_JUMP_STEPS = 166


def jumped_mrg(state: NDArray[Any], jumps: int) -> NDArray[Any]:
    """Return the state ``jumps`` times 2^166 steps ahead, as a new array of the same shape (rows, 6).

    A jump of 2^k steps multiplies each half of a row by the 2^k-th power of a matrix, modulo M1 or M2 (P. L'Ecuyer, R.
    Simard, E. J. Chen, W. D. Kelton, "An object-oriented random-number package with many long streams and substreams",
    Operations Research 50(6), 2002). The period is about 2^185. Theano separates the rows of a state by 2^72 steps, and
    streams by 2^134 steps. Jumps of 2^166 steps leave room for 2^32 streams per rank and for 2^19 ranks.
    """
    return _advanced(state, LOG2_JUMP_STEPS, jumps)


def seeded_mrg(like: NDArray[Any], seed: int, index: int) -> NDArray[Any]:
    """Return the initial state of stream ``index`` of ``MRG_RandomStreams(seed)``, with ``like``'s dtype and shape.

    A seed that Theano would reject (0, or too large) is replaced by six numbers derived from it.
    """
    first = np.full(6, seed) if 0 < seed < M2 else np.random.SeedSequence(seed).generate_state(6) % (M2 - 1) + 1
    rows = _advanced(first[np.newaxis], LOG2_STREAM_STEPS, index)
    while len(rows) < len(like):  # row i is i * 2^72 steps after row 0
        rows = np.concatenate([rows, _advanced(rows, LOG2_ROW_STEPS, len(rows))])
    seeded: NDArray[Any] = rows[: len(like)].astype(like.dtype)
    return seeded


def _advanced(state: NDArray[Any], log2: int, times: int) -> NDArray[Any]:
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
    # Factors are below 2^31, so a sum of three products fits into 64 unsigned bits, but not into 63.
    return one.astype(np.uint64) @ other.astype(np.uint64) % np.uint64(modulus)


def jumped_random_state(state: np.random.RandomState, jumps: int) -> np.random.RandomState:
    """Return a copy of a RandomState that is ``jumps`` times 2^128 numbers ahead (see ``numpy.random.MT19937.jumped``).

    A jump drops the second number of a normal pair, which RandomState caches. Only states with MT19937 are accepted.
    """
    whole: Any = state.get_state(legacy=False)
    if whole["bit_generator"] != "MT19937":
        got = f"a RandomState with {whole['bit_generator']}"
        raise ArgumentTypeError("random state", "a RandomState with MT19937", got, "create it with RandomState(seed)")
    words, position = whole["state"]["key"], whole["state"]["pos"]
    # NumPy's jump treats the words as a ring that begins at the position, and returns such a ring. RandomState draws
    # from a block of words that is renewed as a whole, so a jump of its unchanged state would leave the sequence. A
    # whole block is a ring that begins at 0.
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
    """Return the initial RandomState of the ``index``-th stream for a seed."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, index])))


def jumped_generator(state: np.random.Generator, jumps: int, argument: str = "random state") -> np.random.Generator:
    """Return a generator ``jumps`` jumps ahead; for PCG64, NumPy's and PyTensor's default, a jump is about 2^127 draws.

    Source: https://numpy.org/doc/stable/reference/random/parallel.html ("Jumping the BitGenerator state"). With
    ``jumps=0``, the result is a copy. Otherwise, a generator that cannot jump, such as SFC64, raises ArgumentTypeError.
    """
    bits: Any = state.bit_generator
    if jumps and not hasattr(bits, "jumped"):
        got, hint = type(bits).__name__, "create it with numpy.random.default_rng(seed)"
        raise ArgumentTypeError(argument, "a generator that can jump: PCG64, Philox or MT19937", got, hint)
    return np.random.Generator(bits.jumped(jumps)) if jumps else copy.deepcopy(state)


def seeded_generator(state: np.random.Generator, seed: int, index: int) -> np.random.Generator:
    """Return the initial generator of the ``index``-th stream for a seed, with ``state``'s type of bit generator."""
    kind: Any = type(state.bit_generator)
    return np.random.Generator(kind(np.random.SeedSequence([seed, index])))
