"""Gloo, PyTorch's backend for CPU processes, through torch.distributed."""

import os
import tempfile

from .collective import Collective
from .forked import Forked


class Gloo(Collective, Forked):
    """Gloo with one thread per process, like all contenders."""

    def __init__(self, size):
        Forked.__init__(self, size)
        self._folder = tempfile.mkdtemp(prefix="gloo-")

    def begin(self):
        """Connect to the other ranks."""
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.torch, self.distributed = torch, torch.distributed
        self.distributed.init_process_group(
            "gloo", init_method="file://" + os.path.join(self._folder, "store"), rank=self.rank, world_size=self.size
        )

    def wait(self):
        """Wait for all ranks."""
        self.distributed.barrier()

    def all_reduce(self, mine, result):
        """Reduce to the maximum on all ranks, in place."""
        self.distributed.all_reduce(self.torch.from_numpy(result), self.distributed.ReduceOp.MAX)

    def reduce(self, mine, result):
        """Reduce to the maximum on rank 0, in place."""
        self.distributed.reduce(self.torch.from_numpy(result), 0, self.distributed.ReduceOp.MAX)

    def broadcast(self, mine, result):
        """Broadcast from rank 0."""
        self.distributed.broadcast(self.torch.from_numpy(result), 0)

    def scatter(self, mine, result):
        """Scatter rank 0's array."""
        parts = list(self.torch.from_numpy(mine).chunk(self.size)) if self.rank == 0 else None
        self.distributed.scatter(self.torch.from_numpy(result), parts)

    def gather(self, mine, result):
        """Gather on rank 0."""
        parts = list(self.torch.from_numpy(result).chunk(self.size)) if self.rank == 0 else None
        self.distributed.gather(self.torch.from_numpy(mine), parts)

    def all_gather(self, mine, result):
        """Gather on all ranks."""
        self.distributed.all_gather(list(self.torch.from_numpy(result).chunk(self.size)), self.torch.from_numpy(mine))
