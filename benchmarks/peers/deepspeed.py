"""DeepSpeed's all_reduce in shared memory, whose C++ code is compiled at the first start."""

import importlib.util
import os
from pathlib import Path

from .gloo import Gloo

BUILT = Path(__file__).resolve().parents[1] / "results" / "deepspeed"
SOURCES = ("shm_interface.cpp", "shm.cpp")


class DeepSpeed(Gloo):
    """Peer that reduces with DeepSpeed, with the options of DeepSpeed's own build, and meets with Gloo."""

    def begin(self):
        """Connect to the other ranks, with the kernels that rank 0 compiles first."""
        from torch.utils import cpp_extension

        super().begin()
        package = Path(importlib.util.find_spec("deepspeed").submodule_search_locations[0])
        sources = [str(package / "ops" / "csrc" / "cpu" / "comm" / name) for name in SOURCES]
        for turn in range(2):  # the other ranks find what rank 0 has compiled
            if turn == min(self.rank, 1):
                if turn == 0:
                    BUILT.mkdir(parents=True, exist_ok=True)
                    (BUILT / "lock").unlink(missing_ok=True)  # of a build that was killed
                options = {"extra_cflags": ["-O2", "-fopenmp", "-std=c++20"], "extra_ldflags": ["-fopenmp"]}
                kernels = cpp_extension.load("deepspeed_shm", sources, build_directory=str(BUILT), **options)
            self.wait()
        # Names of shared memory contain the address and the port.
        os.environ.update(
            LOCAL_SIZE=str(self.size), MASTER_ADDR="synkhronos", MASTER_PORT=os.path.basename(self._folder)
        )
        kernels.initialize(self.size, self.rank)
        self.wait()
        for path in Path("/dev/shm").glob(f"deepspeed_*_{os.path.basename(self._folder)}_{self.rank}"):
            path.unlink()  # all ranks have mapped it, and DeepSpeed never removes it

    def prepare(self, what, mine):
        """Return the function to time, after a test of the sum; repeated sums of alternating signs remain zero."""
        import torch

        array = torch.from_numpy(mine)
        self.reduce_in_place(array)
        if float(array[-1]) != self.size * (self.size + 1) / 2:
            raise RuntimeError(f"DeepSpeed's sum is wrong: {float(array[-1])}")
        mine[:] = 0 if self.size % 2 and self.rank == 0 else 1 - 2 * (self.rank % 2)
        return (lambda: self.reduce_in_place(array)), mine, 0

    def reduce_in_place(self, array):
        """Replace an array with the sum over all ranks."""
        self.torch.ops.deepspeed.inference_all_reduce_(array)
