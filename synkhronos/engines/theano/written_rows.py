"""Replacement of literal numbers of rows for Theano, whose convolutions may store the shape of their images."""

from __future__ import annotations

from copy import copy
from typing import Any, Optional, Sequence

from theano.sandbox.rng_mrg import mrg_uniform_base
from theano.tensor import raw_random
from theano.tensor.nnet import abstract_conv, conv

from ...sharding import Placement, Shard
from ..graph.written_rows import WrittenRowsReader
from .placing import PLACING
from .scans import SCANS


def _remade(op: Any, node: Any, inputs: Sequence[Any]) -> Any:
    return node.clone_with_new_inputs(list(inputs), strict=False) if op is node.op else op.make_node(*inputs)


def _without_rows(node: Any, placements: Sequence[Placement]) -> Optional[Any]:
    """Return a convolution, or a convolution's gradient, for any number of images; None if there is no change."""
    op = node.op
    if op.imshp is None or op.imshp[0] is None or not any(isinstance(one, Shard) for one in placements[:2]):
        return None
    found = copy(op)
    found.imshp = (None, *op.imshp[1:])
    return found


def _old_without_rows(node: Any, placements: Sequence[Placement]) -> Optional[Any]:
    """Return a ``ConvOp`` for any number of rows (images, or channels in a gradient); None if there is no change."""
    op, images = node.op, placements[0]
    if not isinstance(images, Shard) or images.axis > 1:
        return None
    bsize, imshp, logical = op.bsize, op.imshp, op.imshp_logical
    if images.axis == 0:
        bsize = None
    else:
        imshp, logical = (None, *imshp[1:]), (None, *logical[1:])
    if (bsize, imshp, logical) == (op.bsize, op.imshp, op.imshp_logical):
        return None
    return conv.ConvOp(
        imshp,
        op.kshp,
        op.nkern,
        bsize,
        op.dx,
        op.dy,
        output_mode=op.out_mode,
        imshp_logical=logical,
        kshp_logical=op.kshp_logical,
        kshp_logical_top_aligned=op.kshp_logical_top_aligned,
        version=op.version,
        direction_hint=op.direction_hint,
    )


WRITTEN_ROWS = WrittenRowsReader(
    PLACING,
    (mrg_uniform_base, raw_random.RandomFunction),
    _remade,
    SCANS.remade,
    {abstract_conv.BaseAbstractConv: _without_rows, conv.ConvOp: _old_without_rows},
)
