"""Values encoded in 16 bits decode to those of `reductions.half_precision`, with and without the kernel."""

import numpy as np
import pytest
from refusals import reports

from synkhronos.kernels import copy as streaming
from synkhronos.kernels import encoding
from synkhronos.reductions.half_precision import rounded

SPECIAL = [
    0,
    -0.0,
    1,
    -1,
    np.inf,
    -np.inf,
    np.nan,
    3.4e38,
    -3.4e38,
    1e-45,
    1.17e-38,
    65504,
    65520,
    1 + 2**-8,
    1 + 3 * 2**-8,
]


@pytest.fixture(params=["kernel", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(encoding, "kernels", None)
    elif streaming.kernels is None:
        pytest.skip("needs the kernels in C: make install, with a compiler")


def arrived(values, wire):
    """Return values after encoding and decoding."""
    message = np.full(encoding.message_length(values.size, wire) + 2, 0xABCD, np.uint16)
    target = np.full(values.size + 2, 9, values.dtype)
    encoding.encode(values, message[1:-1], wire)
    assert message[0] == message[-1] == 0xABCD
    encoding.decode(message[1:-1], target[1:-1], wire)
    assert target[0] == target[-1] == 9
    return target[1:-1]


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 7, 33, 5000])
def test_what_arrives(way, wire, dtype, size):
    random = np.random.RandomState(size)
    for scale in (1, 1e-30, 1e30, 1e-44):
        values = (random.standard_normal(size) * scale).astype(dtype)
        assert arrived(values, wire).tobytes() == rounded(values, wire).tobytes()
    if dtype == "float64":
        for scale in (1e-300, 1e300, 1e-320):
            values = random.standard_normal(size) * scale
            assert arrived(values, wire).tobytes() == rounded(values, wire).tobytes()


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values(way, wire, dtype):
    with np.errstate(all="ignore"):
        for values in (np.array(SPECIAL, dtype), *np.array(SPECIAL, dtype)[:, None]):
            np.testing.assert_array_equal(arrived(values, wire), rounded(values, wire))


def test_known_numbers(way):
    """Codes are the upper halves of float32, rounded to nearest, ties to even: 1 is 0x3F80."""
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -2, np.inf, np.nan, -np.nan], "float32")
    message = np.empty(7, np.uint16)
    encoding.encode(values, message, "bfloat16")
    assert [hex(item) for item in message] == ["0x3f80", "0x3f80", "0x3f82", "0xc000", "0x7f80", "0x7fc0", "0x7fc0"]


@pytest.mark.skipif(streaming.kernels is None, reason="needs the kernels in C: make install, with a compiler")
@pytest.mark.parametrize("name, sizes", [("encode_bfloat16", (2, 4)), ("decode_bfloat16", (4, 2))])
def test_buffers_that_do_not_fit(name, sizes):
    kernel = getattr(streaming.kernels, name)
    target, source = (np.zeros(8 * size, np.uint8) for size in sizes)
    kernel(target, source)
    for wrong in (
        (target[: sizes[0]], source),
        (target, source[:-1]),
        (target[:-1], source),
        (target[:-2], source[:-2]),
    ):
        with reports(ValueError, "buffers", f"{wrong[0].nbytes} and {wrong[1].nbytes}"):
            kernel(*wrong)
    for wrong in ((unaligned(target), source), (target, unaligned(source))):
        with reports(ValueError, "aligned"):
            kernel(*wrong)
    with pytest.raises((TypeError, BufferError)):
        kernel(bytes(target), source)


def unaligned(array):
    """Return a byte array of the same size that begins at an odd address."""
    return np.zeros(array.size + 1, np.uint8)[1:]
