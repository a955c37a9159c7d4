"""Selection of the devices of a mesh, before JAX is used."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import Any, List, Optional

from ..errors import ArgumentTypeError, ArgumentValueError, SynkhronosError

JAX = "jax"  #: The value of ``devices`` that selects all devices of JAX.
FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
MANY_DEVICES = 100  #: The number of CPU devices that ``pymc.sampling.jax`` forces when it is imported.


def is_wanted(devices: Any) -> bool:
    """Return whether ``devices``, an argument of `fork`, selects devices of JAX."""
    if isinstance(devices, str):
        return devices == JAX
    return isinstance(devices, (list, tuple)) and any(_is_device(one) for one in devices)


def _is_device(thing: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(thing, jax.Device)


def choose(devices: Any, n_ranks: Optional[int]) -> List[Any]:
    """Return the device of every rank; ``devices`` is "jax" or a list of JAX's devices."""
    for name, title in (("jax", "JAX"), ("pytensor", "PyTensor")):
        if importlib.util.find_spec(name) is None:
            raise SynkhronosError(f"devices: JAX's devices need {title}, which is not installed: pip install {name}")
    forced = FORCED.search(os.environ.get("XLA_FLAGS", ""))
    if devices == JAX and n_ranks is None and forced is not None and int(forced.group(1)) >= MANY_DEVICES:
        expected = "the number of ranks, because XLA_FLAGS forces 100 CPU devices or more (as pymc.sampling.jax does)"
        raise ArgumentValueError(
            "n_ranks", expected, f"None, with {forced.group(0)}", "pass n_ranks, or unset the flag"
        )
    jax: Any = importlib.import_module("jax")
    if jax.process_count() > 1:
        raise ArgumentValueError("devices", "devices of one process", f"{jax.process_count()} processes of JAX")
    if devices != JAX:
        return _checked(jax, list(devices), n_ranks)
    there = jax.local_devices()
    if n_ranks is not None and n_ranks > len(there):
        expected = f"at most {len(there)}, the number of JAX's devices ({there[0].platform})"
        hint = f"for CPU devices, set the environment variable JAX_NUM_CPU_DEVICES={n_ranks} before JAX is imported"
        raise ArgumentValueError("n_ranks", expected, str(n_ranks), hint)
    return list(there[:n_ranks])


def _checked(jax: Any, devices: List[Any], n_ranks: Optional[int]) -> List[Any]:
    for i, device in enumerate(devices):
        if not isinstance(device, jax.Device):
            raise ArgumentTypeError(f"devices[{i}]", "a device of JAX", f"{device!r} of type {type(device).__name__}")
        if device in devices[:i]:
            raise ArgumentValueError(f"devices[{i}]", "a different device for every rank", f"{device} again")
        if device.platform != devices[0].platform:
            expected = f"devices of one platform ({devices[0].platform})"
            raise ArgumentValueError(f"devices[{i}]", expected, f"{device} ({device.platform})")
    if n_ranks not in (None, len(devices)):
        raise ArgumentValueError("n_ranks", f"{len(devices)}, the number of devices", str(n_ranks), "leave it out")
    return devices


def launcher_of(
    devices: Any, n_ranks: Optional[int], use_gpu: Optional[bool], deaths: int, over_hosts: bool, root: int
) -> Any:
    """Return the launcher of a session on JAX's devices; raise if options of `fork` do not fit it."""
    if use_gpu is not None:
        raise ArgumentValueError("use_gpu", "None, because devices selects the devices", str(use_gpu), "leave it out")
    if deaths:
        hint = "a lost device ends the program; save checkpoints instead"
        raise ArgumentValueError("heal", "0, because no rank is a process of its own", str(deaths), hint)
    if over_hosts:
        hint = "start the program without an MPI launcher, or fork processes"
        raise ArgumentValueError("devices", "names of devices, with several hosts", "JAX's devices", hint)
    found = choose(devices, n_ranks)
    if not 0 <= root < len(found):
        expected = f"an int from 0 to {len(found) - 1} (number of ranks: {len(found)})"
        raise ArgumentValueError("master_rank", expected, str(root))
    return importlib.import_module("synkhronos.mesh.launcher").MeshLauncher(found, root)
