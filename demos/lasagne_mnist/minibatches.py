"""Row indices of each epoch's minibatches, reproducible from seed and epoch even after a restart."""

import numpy as np


def iter_minibatch_idxs(length, size, seed, epoch):
    """Yield shuffled row indices in batches of ``size``; the last batch may be smaller."""
    order = np.random.RandomState([seed, epoch]).permutation(length)
    for start in range(0, length, size):
        yield order[start : start + size]


def iter_shard_idxs(lengths, size, seed, epoch):
    """Yield minibatches of about ``size`` rows for scattered data, each as a list with one index array per rank.

    Every rank shuffles only its own rows.
    """
    orders = [np.random.RandomState([seed, epoch, rank]).permutation(length) for rank, length in enumerate(lengths)]
    n_batches = -(-sum(lengths) // size)
    yield from map(list, zip(*[np.array_split(order, n_batches) for order in orders]))


def iter_shard_idxs_of_all(lengths, size, seed, epoch):
    """Yield the minibatches of `iter_shard_idxs` as indices into the whole data set, for the serial program."""
    starts = np.cumsum([0] + list(lengths))
    for idxs in iter_shard_idxs(lengths, size, seed, epoch):
        yield np.concatenate([start + of_rank for start, of_rank in zip(starts, idxs)])
