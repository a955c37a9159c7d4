"""The processes of a program that was started on several hosts: the first runs it, the others serve."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from ..errors import ArgumentError, StateError, SynkhronosError
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
    if world is not None:
        ignore_ends_of_others()
    if world is not None and world.process == 0:
        PROGRAM.meet(world)
    elif world is not None:
        serve(world)


def ignore_ends_of_others() -> None:
    """Have this process go on when MPICH's launcher tells it that another one of the job has ended: by SIGUSR1."""
    of_main_thread = threading.current_thread() is threading.main_thread()
    if of_main_thread and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def serve(world: World) -> NoReturn:
    """Serve the first host, then end this process."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # MPICH's launcher sends it to all hosts; the program decides
    try:
        together = Server(world, PROGRAM.enter_rank).serve()
        flush()
        world.end(together)
        status = 0
    except (SynkhronosError, ArgumentError) as error:
        print(f"synkhronos: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    finally:
        flush()
        os._exit(status)


def flush() -> None:
    """Write out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


if __name__ == "__main__":
    serve(ToldWorld(os.environ[MEETING]))
