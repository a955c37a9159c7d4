"""The launcher of a session on a mesh: every rank is a device, and a thread of the program executes its commands."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import jax

from ..errors import ArgumentTypeError
from ..processes.local import LocalLauncher
from ..runtime.context import RankContext
from ..runtime.launcher import RankConfig
from ..sync.control_block import ControlBlock
from .engine import MeshEngine
from .mesh import JaxMesh


class MeshLauncher(LocalLauncher):
    """Runs ranks as threads of this process, each with one of JAX's devices; ``root`` is the rank of the program."""

    runs_python = False

    def __init__(self, devices: Sequence[Any], root: int) -> None:
        super().__init__()
        self.mesh, self.root = JaxMesh(devices), root
        self._engines: Dict[str, MeshEngine] = {}
        self._is_recorded = False  # whether every rank records its own activity, for a profile

    def start(self, configs: List[RankConfig], block: ControlBlock, pools: Dict[int, Any]) -> None:
        # Without this setting, JAX would silently compute float64 and int64 in 32 bits.
        jax.config.update("jax_enable_x64", True)
        self._is_recorded = len(block.spans[self.root]) > 0
        super().start(configs, block, pools)

    @property
    def has_contexts(self) -> bool:  # type: ignore[override]
        return not self._is_recorded and len(self.contexts) == self.mesh.size - 1

    def all_contexts(self, own: RankContext) -> List[RankContext]:
        return [own if rank == self.root else self.contexts[rank] for rank in range(self.mesh.size)]

    def release(self, own: RankContext) -> None:
        for entry in own.registry.shareds.values():
            entry.settle()

    def admit(self, function: Any) -> None:
        self.engine(function.engine).function(function.on_ranks)

    def engine(self, engine: Any) -> MeshEngine:
        if engine.name != "pytensor":
            hint = "build the function with PyTensor, or fork processes instead of devices='jax'"
            raise ArgumentTypeError("engine", "PyTensor's, for ranks on JAX's devices", repr(engine.name), hint)
        found = self._engines.get(engine.name)
        if found is None:
            found = self._engines[engine.name] = MeshEngine(engine, self.mesh, self.root)
        return found
