"""Files without a name: their pages are reserved before they are accessed."""

import os

from refusals import reports

from synkhronos.errors import SharedMemoryError
from synkhronos.host import machine
from synkhronos.memory.memfd import give_back, nameless_file


def test_all_pages_are_reserved_at_creation():
    size = 3 * os.sysconf("SC_PAGE_SIZE")
    fd = nameless_file("test", size)
    try:
        stat = os.fstat(fd)
        assert (stat.st_size, stat.st_blocks * 512, stat.st_mode & 0o777) == (size, size, 0o600)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_without_a_size_nothing_is_reserved():
    fd = nameless_file("test")
    try:
        assert (os.fstat(fd).st_size, os.fstat(fd).st_blocks) == (0, 0)
    finally:
        os.close(fd)


def test_what_cannot_be_reserved_is_refused_and_closed(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    before = os.listdir("/proc/self/fd")
    with reports(SharedMemoryError, "4.0 KiB", "0 bytes"):
        nameless_file("test", 4096)
    assert os.listdir("/proc/self/fd") == before


def test_what_is_given_back_reads_as_zeros_and_takes_no_memory():
    page = os.sysconf("SC_PAGE_SIZE")
    fd = nameless_file("test")
    try:
        os.pwrite(fd, b"x" * (10 * page), 0)
        give_back(fd, 10, 20)  # less than a page
        assert os.fstat(fd).st_blocks * 512 == 10 * page
        give_back(fd, 20, 2 * page + 5)
        assert os.fstat(fd).st_blocks * 512 == 8 * page and os.fstat(fd).st_size == 10 * page
        assert os.pread(fd, 3 * page, 0) == b"\0" * (2 * page) + b"x" * page
    finally:
        os.close(fd)
