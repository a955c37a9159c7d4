"""Which of PyTensor's operations are affine, and in which of their inputs."""

from __future__ import annotations

from typing import Any, List, Sequence


def affine_inputs(node: Any) -> List[Sequence[int]]:
    """Return groups of positions: the node is affine in the inputs of each group, if the others are fixed."""
    return []
