"""Quantities formatted for readers."""

import pytest

from synkhronos.host.units import readable_bytes


@pytest.mark.parametrize(
    "nbytes, text",
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB (1024 bytes)"),
        (3 << 19, "1.5 MiB (1572864 bytes)"),
        (5 << 40, "5.0 TiB (5497558138880 bytes)"),
    ],
)
def test_readable_bytes(nbytes, text):
    assert readable_bytes(nbytes) == text
