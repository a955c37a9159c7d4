"""Settings of MPI libraries that suit the courier; they count if they are set before MPI starts."""

from __future__ import annotations

from typing import Dict, MutableMapping

#: By the environment variable. Open MPI's TCP announces messages above its eager limit, and answers before any data
#: flows; with pieces of this size links are half idle then.
SETTINGS: Dict[str, str] = {
    "OMPI_MCA_btl_tcp_eager_limit": str(1 << 20),
    "OMPI_MCA_btl_tcp_rndv_eager_limit": str(1 << 20),
    "OMPI_MCA_btl_tcp_max_send_size": str(1 << 20),
}


def apply_settings(environment: MutableMapping[str, str]) -> None:
    """Set what the user has not set.

    Parameters
    ----------
    environment : mapping
        ``os.environ``, before ``from mpi4py import MPI``.

    Examples
    --------
    >>> environment = {"OMPI_MCA_btl_tcp_eager_limit": "65536"}
    >>> apply_settings(environment)
    >>> environment["OMPI_MCA_btl_tcp_eager_limit"], environment["OMPI_MCA_btl_tcp_max_send_size"]
    ('65536', '1048576')
    """
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)
