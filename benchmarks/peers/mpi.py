"""Open MPI and MPICH, through mpi4py."""

from .collective import Collective


class Mpi(Collective):
    """Both of them: which one it is, the environment tells (MPI4PY_MPIABI)."""

    @classmethod
    def start(cls, size):
        """Return the peer of this process."""
        return cls()

    def __init__(self):
        from mpi4py import MPI

        self.comm, self.op = MPI.COMM_WORLD, MPI.MAX
        self.rank, self.size = self.comm.rank, self.comm.size

    def wait(self):
        """Wait for all."""
        self.comm.Barrier()

    def all_reduce(self, mine, result):
        """The maximum, for all."""
        self.comm.Allreduce(mine, result, self.op)

    def reduce(self, mine, result):
        """The maximum, for rank 0."""
        self.comm.Reduce(mine, result, self.op)

    def broadcast(self, mine, result):
        """From rank 0."""
        self.comm.Bcast(result)

    def scatter(self, mine, result):
        """Divide what rank 0 has."""
        self.comm.Scatter(mine, result)

    def gather(self, mine, result):
        """To rank 0."""
        self.comm.Gather(mine, result if self.rank == 0 else None)

    def all_gather(self, mine, result):
        """To all."""
        self.comm.Allgather(mine, result)
