"""Checkpoints of programs of Theano and PyTensor, compared with uninterrupted draws."""

import numpy as np
import pytest
from library import NAME, L

import synkhronos as synk
from synkhronos.extensions import checkpoint

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough]


def test_random_streams_of_engines_go_on(tmp_path):
    synk.fork(2, use_gpu=False)
    path, streams = str(tmp_path / "model.npz"), L.streams(3)
    draw = synk.function([], [(stream.normal((4,)), "gather") for stream in streams])
    states = [state for stream in streams for state in L.states(stream)]
    draw()
    checkpoint.save(path, states)
    expected = draw()
    draw()
    checkpoint.load(path, states)
    np.testing.assert_array_equal(draw(), expected)
    synk.close()
