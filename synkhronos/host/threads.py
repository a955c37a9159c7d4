"""Control of the thread counts of BLAS and OpenMP libraries."""

from __future__ import annotations

import os
from typing import Any, List

import threadpoolctl


def limit_threads(threads: int) -> None:
    """Limit the threads of BLAS and OpenMP in this process, for libraries loaded now or later."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    threadpoolctl.threadpool_limits(threads)


class ThreadLibrary:
    """Access to the number of threads of one BLAS or OpenMP library, with direct calls to OpenBLAS.

    For two libraries, direct calls take 1 microsecond per command, but calls through threadpoolctl take 5.
    """

    def __init__(self, controller: Any) -> None:
        self.get_num_threads, self.set_num_threads = controller.get_num_threads, controller.set_num_threads
        if controller.internal_api == "openblas":
            for form in (
                f"{prefix}openblas_%s_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_")
            ):
                if hasattr(controller.dynlib, form % "set"):
                    self.get_num_threads = getattr(controller.dynlib, form % "get")
                    self.set_num_threads = getattr(controller.dynlib, form % "set")


def loaded_libraries() -> List[ThreadLibrary]:
    """Return the BLAS and OpenMP libraries that this process has loaded."""
    return [ThreadLibrary(controller) for controller in threadpoolctl.ThreadpoolController().lib_controllers]
