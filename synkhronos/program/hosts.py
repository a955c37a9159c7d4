"""The processes of a program that was started on several hosts: the first runs it, the others serve."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from ..errors import StateError
from ..launchers.hosts.serve import Server
from ..launchers.hosts.world import MEETING, ToldWorld, World, world_of_process
from .program import PROGRAM


def take_place() -> None:
    """If this process was started on one of several hosts: on the first get ready to speak to the others, else serve.

    To be called once, before the program has begun to use the library. On other hosts it does not return.
    """
    world = world_of_process()
    mpi = sys.modules.get("mpi4py.MPI")
    if world is not None and mpi is not None and mpi.Is_initialized():
        raise StateError(
            "this program was started on several hosts, and MPI was initialised before synkhronos (by Theano, "
            "where mpi4py is installed): run it by python -m synkhronos, or import synkhronos first"
        )
    if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL and world is not None:
        # MPICH's launcher sends it to the processes of a job in which one has ended, to say so: they would end, too.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if world is not None and world.process == 0:
        PROGRAM.meet(world)
    elif world is not None:
        serve(world)


def serve(world: World) -> NoReturn:
    """Serve the first host, then end this process."""
    status = 1
    try:
        Server(world, PROGRAM.enter_rank).serve()
        status = 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(ToldWorld(os.environ[MEETING]))
