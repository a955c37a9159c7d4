"""Benchmark of sending a batch to the ranks, compared with PyTorch's DataLoader and pipes."""

import itertools
import time

import numpy as np

import synkhronos as synk

from .at_once import AtOnce
from .library import T
from .measure import Local, Times, WrongResult, measure_in_turn

#: Contenders that separate the cost of copying from other costs; names of this cost and of its peer.
ONE_SLICE, INDICES, NEITHER = "a slice of rows", "shuffled rows of one number", "a slice of rows of one number"
COPY, TAKE = "copy of our rows", "np.take on all ranks simultaneously"


def run(groups, n=2, repeats=300, shape=(60000, 784), batch=1024):
    """Yield the result row of a batch of shuffled rows; the measured function itself reads only one number.

    Each rank's cost of copying is the time of calls with shuffled rows minus the time of calls with a slice of rows.
    The same difference for rows of a single number is subtracted, because these calls check and send indices, but copy
    almost nothing. The peer is `np.take` in the same number of processes, which start together.
    """
    x = T.fmatrix("x")
    look = synk.function([x], (x[0, 0], "max"))
    array = np.random.RandomState(0).rand(*shape).astype("float32")
    synk.fork(n, use_gpu=False)
    try:
        data, column = synk.data(array), synk.data(array[:, :1])
        random = np.random.RandomState(1)
        # A whole epoch, so that all contenders read rows from memory, not from the cache.
        shuffled = random.permutation(shape[0])[: shape[0] // batch * batch].reshape(-1, batch)
        turn, share = itertools.cycle(shuffled), batch // n
        for each in (data, column):
            if look(each, batch=shuffled[0]) != array[shuffled[0][: share * n : share], 0].max():
                raise WrongResult("the ranks selected wrong rows")
        plain = array[:batch].copy()
        with AtOnce([{"take": taking(data.data, shuffled, rank, share)} for rank in range(n)]) as at_once:
            contenders = {
                "synkhronos": Local(lambda: look(data, batch=next(turn))),
                ONE_SLICE: Local(lambda: look(data, batch=batch)),
                INDICES: Local(lambda: look(column, batch=next(turn))),
                NEITHER: Local(lambda: look(column, batch=batch)),
                TAKE: at_once.contender("take"),
                "np.take on one rank alone": taking(data.data, shuffled, 0, share),
                "synkhronos, NumPy argument": Local(lambda: look(plain)),
                **groups.contenders(("pipes",), n, "send", share * array.strides[0]),
            }
            loader = data_loader(array, batch)
            if loader is not None and groups.kinds:
                contenders["torch DataLoader"] = loader
            times = measure_in_turn(contenders, repeats)
        of = {name: times[name].median for name in (ONE_SLICE, INDICES, NEITHER, "synkhronos")}
        copied = of["synkhronos"] - of[ONE_SLICE] - (of[INDICES] - of[NEITHER])
        times[COPY] = Times(copied, copied, copied, times["synkhronos"].count)
        yield {"case": f"batch of {batch} shuffled rows", "n": n, "times": times}
    finally:
        synk.close()


def taking(array, shuffled, rank, share):
    """Return a contender that copies one rank's share of each batch in turn."""
    rows, turn = np.empty((share,) + array.shape[1:], array.dtype), itertools.cycle(shuffled)

    def take():
        np.take(array, next(turn)[rank * share : (rank + 1) * share], axis=0, out=rows, mode="clip")

    return Local(take)


def data_loader(array, batch):
    """Return torch's DataLoader in this process as a contender; None if torch is not installed."""
    try:
        import torch
        from torch.utils.data import BatchSampler, DataLoader, RandomSampler
    except ImportError:
        return None

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = torch.from_numpy(array)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, chosen):
            return self.rows[chosen]

    class Batches:
        """Contender that loads batches, in consecutive passes over the rows."""

        def __init__(self):
            rows = Rows()
            self.loader = DataLoader(rows, sampler=BatchSampler(RandomSampler(rows), batch, True), batch_size=None)
            self.batches = iter(self.loader)

        def measure(self, repeats, warm=0):
            times = []
            while len(times) < warm + repeats:
                begin = time.perf_counter()
                if next(self.batches, None) is None:
                    self.batches = iter(self.loader)
                else:
                    times.append(time.perf_counter() - begin)
            return times[warm:]

    return Batches()
