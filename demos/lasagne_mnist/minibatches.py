"""Which rows make the minibatches of an epoch. The same seed and epoch give the same rows, also after a restart."""

import numpy as np


def iter_minibatch_idxs(length, size, seed, epoch):
    """Yield shuffled row indices in pieces of ``size``; the last piece may be smaller."""
    order = np.random.RandomState([seed, epoch]).permutation(length)
    for start in range(0, length, size):
        yield order[start : start + size]


def iter_shard_idxs(lengths, size, seed, epoch):
    """Yield, for data that is scattered over ranks, a list with one index array per rank, ``size`` rows in all.

    Every rank shuffles the rows that it has; it can take no others.
    """
    orders = [np.random.RandomState([seed, epoch, rank]).permutation(length) for rank, length in enumerate(lengths)]
    n_batches = -(-sum(lengths) // size)
    yield from map(list, zip(*[np.array_split(order, n_batches) for order in orders]))


def iter_shard_idxs_of_all(lengths, size, seed, epoch):
    """Yield the same minibatches as `iter_shard_idxs`, as indices into the whole data set: for the serial program."""
    starts = np.cumsum([0] + list(lengths))
    for idxs in iter_shard_idxs(lengths, size, seed, epoch):
        yield np.concatenate([start + of_rank for start, of_rank in zip(starts, idxs)])
