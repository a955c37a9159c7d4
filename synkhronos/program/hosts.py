"""Processes of a program on several hosts: the first process runs the program; all other processes serve it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from ..cluster import environment
from ..cluster.serve import Server
from ..cluster.world import World, refuse_mpi, world_of_process
from ..errors import ArgumentError, StateError, SynkhronosError
from .program import PROGRAM

logger = logging.getLogger("synkhronos")

#: Time for the other processes to report an error, too, because mpirun kills them as soon as one ends.
LAST_WORDS_S = 2.0


def take_place() -> None:
    """On several hosts, start the bridge on the first host; on the other hosts, serve until the process ends.

    Call this once, before the program uses the library. On a single host, this function does nothing.
    """
    world = world_of_process()
    mpi = sys.modules.get("mpi4py.MPI")
    if world is not None and mpi is not None and mpi.Is_initialized():
        raise StateError(
            "this program was started on several hosts, and MPI was initialized before synkhronos was used, which only "
            "the library may do: remove MPI.Init(), and run it with python -m synkhronos, or import synkhronos "
            "before mpi4py.MPI and Theano"
        )
    if world is None or world.process == 0:
        advice = environment.advice(os.environ, len(os.sched_getaffinity(0)), os.cpu_count() or 1)
        if advice:
            logger.warning(advice)
    if world is None:
        return
    ignore_ends_of_others()
    if world.process:
        serve(world)
    PROGRAM.meet(world)
    refuse_mpi()


def ignore_ends_of_others() -> None:
    """Ignore SIGUSR1, unless the program handles it: MPICH's launcher sends it when another process of the job ends."""
    of_main_thread = threading.current_thread() is threading.main_thread()
    if of_main_thread and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def serve(world: World) -> NoReturn:
    """Serve the first host, then end this process."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # MPICH's launcher sends it to all hosts; only the program handles it
    try:
        together = Server(world, PROGRAM.enter_rank).serve()
        flush()
        world.end(together)
        status = 0
    except (SynkhronosError, ArgumentError) as error:
        print(f"synkhronos: {error}", file=sys.stderr)
        flush()
        time.sleep(LAST_WORDS_S)
    except Exception:
        traceback.print_exc()
    finally:
        flush()
        os._exit(status)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
