"""The GPUs of this machine and their assignment to ranks, without access to any device."""

from __future__ import annotations

import os
import re
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import List, Optional, Sequence

from ..errors import ArgumentTypeError, ArgumentValueError

_NAMES = re.compile(r"cuda\d+|opencl\d+:\d+")


def count_gpus(root: str = "/") -> int:
    """Count the NVIDIA GPUs that CUDA would show to this process, without loading CUDA.

    As in CUDA, the first nonexistent device in ``CUDA_VISIBLE_DEVICES`` ends the list.
    """
    files = [path for path in Path(root, "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    present = len(files) or _gpus_of_nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present

    def exists(device: str) -> bool:
        return device.startswith(("GPU-", "MIG-")) or device.isdigit() and int(device) < present

    return len(list(takewhile(exists, map(str.strip, visible.split(",")))))


def _gpus_of_nvidia_smi() -> int:
    """Count the GPUs listed by ``nvidia-smi``, for systems without device files (WSL)."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(re.findall(rb"^GPU \d+:", listing, flags=re.MULTILINE))


def place(devices: Optional[Sequence[str]], n_ranks: Optional[int], n_gpus: int, host: str = "") -> List[str]:
    """Return the name of every rank's device on one host.

    ``devices`` are the names that the user passed; by default, the names of all ``n_gpus`` GPUs visible to CUDA.
    ``n_ranks`` is the number of devices by default. ``host`` is the host's name if there are several hosts.
    """
    if devices is None:
        names = [f"cuda{i}" for i in range(n_gpus)]
        if n_ranks is not None and n_ranks > n_gpus:
            shared = [f"cuda{i % max(1, n_gpus)}" for i in range(n_ranks)]
            expected = f"at most {n_gpus}, the number of GPUs" + (host and f" on host {host}")
            hint = f"to share GPUs, list them repeatedly: devices={shared!r}"
            raise ArgumentValueError("n_ranks", expected, str(n_ranks), hint)
        return names[:n_ranks]
    if isinstance(devices, str) or not isinstance(devices, (list, tuple)):
        expected = "a list with the name of every rank's device, for example ['cuda0', 'cuda1']"
        raise ArgumentTypeError("devices", expected, repr(devices))
    if not devices:
        raise ArgumentValueError("devices", "at least one name", "an empty list")
    for i, name in enumerate(devices):
        if not isinstance(name, str):
            raise ArgumentTypeError(f"devices[{i}]", "a str", f"{name!r} of type {type(name).__name__}")
        if not _NAMES.fullmatch(name):
            raise ArgumentValueError(f"devices[{i}]", "a name like 'cuda0' or 'opencl0:0'", repr(name))
        if name.startswith("cuda") and int(name[4:]) >= n_gpus:
            expected = f"a GPU visible on {f'host {host}' if host else 'this machine'} (number of GPUs: {n_gpus})"
            raise ArgumentValueError(f"devices[{i}]", expected, name, "check CUDA_VISIBLE_DEVICES")
    if n_ranks is not None and n_ranks != len(devices):
        expected = f"{len(devices)}, the number of names in devices"
        hint = "list every rank's device (repeatedly to share it), or leave out n_ranks"
        raise ArgumentValueError("n_ranks", expected, str(n_ranks), hint)
    return list(devices)
