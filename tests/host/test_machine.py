"""Usable resources of a machine, on machines simulated by files."""

import os

import pytest

from synkhronos.host import machine

GB = 1 << 30


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {6, 1, 0, 2, 3, 4, 5, 7})


def test_usable_cores_is_the_sorted_affinity(eight_cores):
    assert machine.usable_cores() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_usable_cores_follows_the_affinity_of_this_process():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        assert machine.usable_cores() == [max(before)]
        assert machine.core_budget() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_usable_cores_where_there_is_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert machine.usable_cores() == [0, 1, 2]


V2, V1 = "0::/a/b\n", "4:memory:/docker/x\n3:cpuset:/\n2:cpu,cpuacct:/docker/x\n"
V2_CPU, V1_CPU = "sys/fs/cgroup/%scpu.max", "sys/fs/cgroup/cpu,cpuacct/%scpu.cfs_%s_us"
V1_QUOTA, V1_PERIOD = V1_CPU % ("docker/x/", "quota"), V1_CPU % ("docker/x/", "period")


@pytest.mark.parametrize(
    "files, budget",
    [
        ({}, 8),
        ({"proc/self/cgroup": V2}, 8),
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "max 100000\n"}, 8),
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "3200000 100000\n"}, 8),
        # a parent's limit applies, too, even to a container that sees only its own root
        ({"proc/self/cgroup": V2, V2_CPU % "a/b/": "600000 100000", V2_CPU % "a/": "400000 100000"}, 4),
        ({"proc/self/cgroup": V2, V2_CPU % "": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/\n", V2_CPU % "": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/../../x\n", V2_CPU % "": "200000 100000"}, 2),
        # version 1, with the host's path and with the container's own path
        ({"proc/self/cgroup": V1, V1_QUOTA: -1, V1_PERIOD: 100000}, 8),
        ({"proc/self/cgroup": V1, V1_QUOTA: 500000, V1_PERIOD: 100000}, 5),
        ({"proc/self/cgroup": V1, V1_CPU % ("", "quota"): 150000, V1_CPU % ("", "period"): 50000}, 3),
        ({"proc/self/cgroup": V1, V1_CPU % ("", "quota"): 150000}, 8),
        # another controller's quota does not count
        ({"proc/self/cgroup": "3:cpuset:/\n", "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": 100000}, 8),
    ],
)
def test_core_budget(fake, eight_cores, files, budget):
    assert machine.core_budget(fake(files)) == budget


MEMINFO = {"proc/meminfo": "MemTotal:  16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\nActive(anon): 5 kB\n"}
V2_MEMORY, V1_MEMORY = "sys/fs/cgroup/a/b/memory.%s", "sys/fs/cgroup/memory/docker/x/memory.%s"


def limits(cgroup, names, *values):
    files = {name: value for name, value in zip(names, values) if value is not None}
    return dict(MEMINFO, **{"proc/self/cgroup": cgroup}, **files)


V2_NAMES = [V2_MEMORY % name for name in ("max", "current", "stat")]
V1_NAMES = [V1_MEMORY % name for name in ("limit_in_bytes", "usage_in_bytes", "stat")]


@pytest.mark.parametrize(
    "files, available",
    [
        (MEMINFO, 8 * GB),
        (limits(V2, V2_NAMES, "max\n", GB), 8 * GB),
        (limits(V2, V2_NAMES, f"{3 * GB}\n", GB), 2 * GB),
        (limits(V2, V2_NAMES, 3 * GB, 2 * GB, f"anon 5\ninactive_file {GB // 2}\nfile 7\n"), 3 * GB // 2),
        (limits(V2, V2_NAMES, GB, 2 * GB), 0),
        (limits(V2, V2_NAMES, 100 * GB, GB), 8 * GB),
        (limits(V1, V1_NAMES, 9223372036854771712, GB), 8 * GB),
        (limits(V1, V1_NAMES, 4 * GB, 3 * GB), GB),
        (limits(V1, V1_NAMES, 4 * GB, 3 * GB, f"inactive_file 5\ntotal_inactive_file {GB}\n"), 2 * GB),
        (limits(V1, V1_NAMES, 4 * GB, None), 8 * GB),
    ],
)
def test_available_memory(fake, files, available):
    assert machine.available_memory(fake(files)) == available


CACHES = "sys/devices/system/cpu/cpu0/cache/"


@pytest.mark.parametrize(
    "files, size",
    [
        (
            {CACHES + "index0/size": "48K\n", CACHES + "index3/size": "32768K\n", CACHES + "index2/size": "1024K\n"},
            32 << 20,
        ),
        ({CACHES + "index2/size": "2M\n"}, 2 << 20),
        ({CACHES + "index2/size": "\n"}, 32 << 20),
        ({}, 32 << 20),
    ],
)
def test_cache_size(fake, files, size):
    assert machine.cache_size(fake(files)) == size


def test_available_memory_without_proc_is_all_the_memory(fake):
    assert machine.available_memory(fake({})) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_available_memory_of_this_machine_is_plausible():
    assert 0 < machine.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
