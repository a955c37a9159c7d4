"""What bringing a batch to the ranks costs, beside PyTorch's DataLoader and pipes."""

import time

import numpy as np
import theano.tensor as T

import synkhronos as synk

from .measure import Local, Times, measure_in_turn


def run(groups, n=2, repeats=300, shape=(60000, 784), batch=1024):
    """Measure; yield a row per case. The function itself looks at one number."""
    x = T.fmatrix("x")
    look = synk.function([x], (x[0, 0], "max"))
    array = np.random.RandomState(0).rand(*shape).astype("float32")
    synk.fork(n, use_gpu=False)
    try:
        data = synk.data(array)
        random = np.random.RandomState(1)
        # A whole epoch, so that rows come from memory and not from the cache, for all alike.
        shuffled = random.permutation(shape[0])[:shape[0] // batch * batch].reshape(-1, batch)
        turn = [0]

        def call():
            turn[0] = (turn[0] + 1) % len(shuffled)
            return look(data, batch=shuffled[turn[0]])

        rows, share = np.empty((batch // n, shape[1]), "float32"), batch // n

        def take():
            turn[0] = (turn[0] + 1) % len(shuffled)
            np.take(data.data, shuffled[turn[0]][:share], axis=0, out=rows, mode="clip")

        expected = max(array[rows_of[i * share], 0] for rows_of in shuffled[:1] for i in range(n))
        if look(data, batch=shuffled[0]) != expected:
            raise AssertionError("the wrong rows")
        plain = array[:batch].copy()
        contenders = {"synkhronos": Local(call), "the same without copying": Local(lambda: look(data, batch=batch)),
                      "np.take of one rank's rows": Local(take),
                      "synkhronos, NumPy argument": Local(lambda: look(plain)),
                      **groups.contenders(("pipes",), n, "send", rows.nbytes)}
        loader = data_loader(array, batch)
        if loader is not None and groups.kinds:
            contenders["torch DataLoader"] = loader
        times = measure_in_turn(contenders, repeats)
        copied = times["synkhronos"].median - times["the same without copying"].median
        times["our rows' copy"] = Times(copied, copied, copied, times["synkhronos"].count)
        yield {"case": "batch of %d shuffled rows" % batch, "n": n, "times": times}
    finally:
        synk.close()


def data_loader(array, batch):
    """Return torch's DataLoader in this process as a contender; None where torch is not installed."""
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

        def measure(self, repeats):
            times = []
            while len(times) < repeats:
                begin = time.perf_counter()
                if next(self.batches, None) is None:
                    self.batches = iter(self.loader)
                else:
                    times.append(time.perf_counter() - begin)
            return times

    return Batches()
