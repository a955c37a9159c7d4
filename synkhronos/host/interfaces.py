"""The active network interfaces of this machine that have an IPv4 address."""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import List, NamedTuple

# Linux's ioctl requests about an interface, and the flag of an active interface.
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
IFF_UP = 1


class Interface(NamedTuple):
    """A network interface: its name and its first IPv4 address with prefix length, as in ``"10.0.0.7/16"``.

    >>> eth0 = Interface("eth0", "10.0.0.7/16")
    >>> print(eth0, eth0.network, eth0.is_loopback)
    eth0 (10.0.0.7/16) 10.0.0.0/16 False
    """

    name: str
    address: str

    @property
    def ip(self) -> IPv4Address:
        return IPv4Interface(self.address).ip

    @property
    def network(self) -> IPv4Network:
        return IPv4Interface(self.address).network

    @property
    def is_loopback(self) -> bool:
        return self.ip.is_loopback

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def interfaces() -> List[Interface]:
    """Return the active interfaces in the system's order; an empty list if the system reports none."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                (flags,) = struct.unpack_from("H", _ask(asking, SIOCGIFFLAGS, name), 16)
                if flags & IFF_UP:
                    address, mask = (
                        socket.inet_ntoa(_ask(asking, request, name)[20:24])
                        for request in (SIOCGIFADDR, SIOCGIFNETMASK)
                    )
                    found.append(Interface(name, f"{address}/{IPv4Network('0.0.0.0/' + mask).prefixlen}"))
            except OSError:  # the interface has no address, or was removed meanwhile
                pass
    return found


def _ask(asking: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(asking.fileno(), request, struct.pack("256s", name.encode()[:15]))
