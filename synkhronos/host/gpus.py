"""The GPUs of this machine, and which of them each rank uses; nothing here touches a device."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import List, Optional, Sequence

from ..errors import ArgumentTypeError, ArgumentValueError

_NAMES = re.compile(r"cuda\d+|opencl\d+:\d+")


def count_gpus(root: str = "/") -> int:
    """Count the NVIDIA GPUs that CUDA would show to this process, without touching CUDA.

    ``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it: devices are taken in order up to the first that does not
    exist.

    Examples
    --------
    >>> count_gpus() >= 0
    True
    """
    devices = Path(root, "dev")
    present = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    if not present:
        present = _gpus_of_nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    count = 0
    for device in visible.split(","):
        device = device.strip()
        by_number = device.isdigit() and int(device) < present
        by_uuid = device.startswith(("GPU-", "MIG-"))
        if not (by_number or by_uuid):
            break
        count += 1
    return count


def _gpus_of_nvidia_smi() -> int:
    """Count the GPUs that ``nvidia-smi`` lists: under WSL there are no device files."""
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(re.findall(r"^GPU \d+:", listing, flags=re.MULTILINE))


def place(devices: Optional[Sequence[str]], n_parallel: Optional[int], n_gpus: int, host: str = "") -> List[str]:
    """Return the device of every rank of a host.

    Parameters
    ----------
    devices : sequence of str, optional
        As the user named them; all GPUs by default.
    n_parallel : int, optional
        Number of ranks; one per device by default.
    n_gpus : int
        How many GPUs CUDA would show.
    host : str
        The host's name, if there are several.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        A device cannot exist, or there are more ranks than devices.

    Examples
    --------
    >>> place(None, None, 2)
    ['cuda0', 'cuda1']
    >>> place(["opencl0:0", "opencl0:0"], None, 0)
    ['opencl0:0', 'opencl0:0']
    """
    if devices is None:
        names = [f"cuda{i}" for i in range(n_gpus)]
        if n_parallel is not None and n_parallel > n_gpus:
            shared = [f"cuda{i % max(1, n_gpus)}" for i in range(n_parallel)]
            raise ArgumentValueError(
                "n_parallel",
                f"at most {n_gpus}, as there are {n_gpus} GPUs" + (host and f" on host {host}"),
                str(n_parallel),
                f"ranks share GPUs if these are named several times, devices={shared!r}",
            )
        return names[:n_parallel]
    if isinstance(devices, str) or not isinstance(devices, (list, tuple)):
        raise ArgumentTypeError(
            "devices", "a list with the name of every rank's device, ['cuda0', 'cuda1'] for example", repr(devices)
        )
    if not devices:
        raise ArgumentValueError("devices", "at least one name", "an empty list")
    for i, name in enumerate(devices):
        if not isinstance(name, str):
            raise ArgumentTypeError(f"devices[{i}]", "a str", f"{name!r} of type {type(name).__name__}")
        if not _NAMES.fullmatch(name):
            raise ArgumentValueError(f"devices[{i}]", "a name like 'cuda0' or 'opencl0:0'", repr(name))
        if name.startswith("cuda") and int(name[4:]) >= n_gpus:
            raise ArgumentValueError(
                f"devices[{i}]",
                f"one of the {n_gpus} GPUs that {f'host {host}' if host else 'this machine'} shows",
                name,
                "CUDA_VISIBLE_DEVICES counts",
            )
    if n_parallel is not None and n_parallel != len(devices):
        raise ArgumentValueError(
            "n_parallel",
            f"{len(devices)}, the number of names in devices",
            str(n_parallel),
            "name every rank's device (one may be named several times), or leave out n_parallel",
        )
    return list(devices)
