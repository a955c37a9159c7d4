"""Open MPI and MPICH, through mpi4py."""

from .collective import Collective


class Mpi(Collective):
    """Open MPI or MPICH, as selected by MPI4PY_MPIABI."""

    @classmethod
    def start(cls, size):
        """Return the peer of this process."""
        return cls()

    def __init__(self):
        from mpi4py import MPI

        self.comm, self.op = MPI.COMM_WORLD, MPI.MAX
        self.rank, self.size = self.comm.rank, self.comm.size

    def wait(self):
        """Wait for all ranks."""
        self.comm.Barrier()

    def all_reduce(self, mine, result):
        """Reduce to the maximum on all ranks."""
        self.comm.Allreduce(mine, result, self.op)

    def reduce(self, mine, result):
        """Reduce to the maximum on rank 0."""
        self.comm.Reduce(mine, result, self.op)

    def broadcast(self, mine, result):
        """Broadcast from rank 0."""
        self.comm.Bcast(result)

    def scatter(self, mine, result):
        """Scatter rank 0's array."""
        self.comm.Scatter(mine, result)

    def gather(self, mine, result):
        """Gather on rank 0."""
        self.comm.Gather(mine, result if self.rank == 0 else None)

    def all_gather(self, mine, result):
        """Gather on all ranks."""
        self.comm.Allgather(mine, result)
