"""What bringing a batch to the ranks costs, beside PyTorch's DataLoader and pipes."""

import itertools
import time

import numpy as np

import synkhronos as synk

from .at_once import AtOnce
from .library import T
from .measure import Local, Times, WrongResult, measure_in_turn

#: The pieces of our number, that number, and what it is judged by.
ONE_SLICE, INDICES, NEITHER = "rows of one slice", "shuffled rows of one number", "one slice of one number"
COPY, TAKE = "our rows' copy", "np.take by all ranks at once"


def run(groups, n=2, repeats=300, shape=(60000, 784), batch=1024):
    """Measure; yield a row per case. The function itself looks at one number.

    What copying costs each rank is the difference between calls with shuffled rows and calls whose rows are one slice,
    less that same difference for rows of a single number, for which there are indices to check and send but next to
    nothing to copy. Beside it: `np.take` in as many processes that begin together.
    """
    x = T.fmatrix("x")
    look = synk.function([x], (x[0, 0], "max"))
    array = np.random.RandomState(0).rand(*shape).astype("float32")
    synk.fork(n, use_gpu=False)
    try:
        data, column = synk.data(array), synk.data(array[:, :1])
        random = np.random.RandomState(1)
        # A whole epoch, so that rows come from memory and not from the cache, for all alike.
        shuffled = random.permutation(shape[0])[: shape[0] // batch * batch].reshape(-1, batch)
        turn, share = itertools.cycle(shuffled), batch // n
        for each in (data, column):
            if look(each, batch=shuffled[0]) != array[shuffled[0][: share * n : share], 0].max():
                raise WrongResult("the wrong rows")
        plain = array[:batch].copy()
        with AtOnce([{"take": taking(data.data, shuffled, rank, share)} for rank in range(n)]) as at_once:
            contenders = {
                "synkhronos": Local(lambda: look(data, batch=next(turn))),
                ONE_SLICE: Local(lambda: look(data, batch=batch)),
                INDICES: Local(lambda: look(column, batch=next(turn))),
                NEITHER: Local(lambda: look(column, batch=batch)),
                TAKE: at_once.contender("take"),
                "np.take by one rank alone": taking(data.data, shuffled, 0, share),
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
    """Return a contender that copies one rank's share of every batch in turn."""
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
        """The batches of one pass after the other."""

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
