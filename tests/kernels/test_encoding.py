"""Values encoded in 16 bits decode to values that NumPy rounds in another way, with and without the kernel."""

import numpy as np
import pytest
from refusals import reports

from synkhronos.kernels import copy as streaming
from synkhronos.kernels import encoding

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


def rounded(values, wire):
    """Return values rounded to 16 bits, from the definition of each format."""
    with np.errstate(all="ignore"):
        return (bfloat16 if wire == "bfloat16" else float16)(values).astype(values.dtype)


def bfloat16(values):
    single = np.array(values, np.float32)
    bits = single.view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    result = ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    result[np.isnan(single)] = np.nan
    return result


def float16(values):
    finite = np.abs(values[np.isfinite(values)])
    exponent = int(np.frexp(finite.max(initial=0))[1])
    return np.ldexp(np.ldexp(values, 15 - exponent).astype(np.float16).astype(values.dtype), exponent - 15)


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


@pytest.mark.parametrize("wire", encoding.FORMATS)
def test_values_rounded_in_place_of_a_transfer(way, wire):
    """Any shape, order and type: 16 bits are computed in single precision."""
    values = np.random.RandomState(0).standard_normal((6, 4))
    for one in (values, values[::2].T, values[0, 0:0], values[0, 0].reshape(()), values.astype("float32")):
        kept = one.copy()
        found = encoding.rounded(one, wire)
        assert found.shape == one.shape and found.dtype == one.dtype and not np.may_share_memory(found, one)
        np.testing.assert_array_equal(found.reshape(-1), rounded(np.ascontiguousarray(one).reshape(-1), wire))
        np.testing.assert_array_equal(one, kept)
    half = values.astype("float16")
    np.testing.assert_array_equal(encoding.rounded(half, wire), rounded(half.astype("float32"), wire).astype("float16"))


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
