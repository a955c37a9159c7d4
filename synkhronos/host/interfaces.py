"""The active network interfaces of this machine, with their IPv4 and IPv6 addresses."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from ipaddress import IPv4Network, IPv6Address, ip_interface
from typing import Any, List, NamedTuple

# Linux's ioctl requests about an interface, and the flag of an active interface.
SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
IFF_UP = 1

#: Linux's list of IPv6 addresses, the scope of addresses that are valid beyond one link, and flags of addresses that
#: are temporary, or duplicates of another machine's address, or may be.
IF_INET6, GLOBAL_SCOPE, UNUSABLE_FLAGS = "/proc/net/if_inet6", 0x00, 0x01 | 0x08 | 0x40


class Interface(NamedTuple):
    """A network interface: its name and one of its addresses with prefix length, as in ``"10.0.0.7/16"``.

    >>> eth0 = Interface("eth0", "10.0.0.7/16")
    >>> print(eth0, eth0.network, eth0.is_loopback)
    eth0 (10.0.0.7/16) 10.0.0.0/16 False
    """

    name: str
    address: str

    @property
    def ip(self) -> Any:
        return ip_interface(self.address).ip

    @property
    def network(self) -> Any:
        return ip_interface(self.address).network

    @property
    def is_loopback(self) -> bool:
        return bool(self.ip.is_loopback)

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def interfaces() -> List[Interface]:
    """Return the active interfaces in the system's order: each first IPv4 address, and first global IPv6 address."""
    found, all_of_ipv6 = [], _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address, or was removed meanwhile
                (flags,) = struct.unpack_from("H", _ask(asking, SIOCGIFFLAGS, name), 16)
                if not flags & IFF_UP:
                    continue
                of_ipv6 = [each for each in all_of_ipv6 if each.name == name]
                try:
                    address, mask = (
                        socket.inet_ntoa(_ask(asking, request, name)[20:24])
                        for request in (SIOCGIFADDR, SIOCGIFNETMASK)
                    )
                    found.append(Interface(name, f"{address}/{IPv4Network('0.0.0.0/' + mask).prefixlen}"))
                finally:
                    found += of_ipv6[:1]
    return found


def _ipv6_addresses() -> List[Interface]:
    found = []
    try:
        with open(IF_INET6) as lines:
            for address, _, prefix, scope, flags, name in map(str.split, lines):
                ip = IPv6Address(int(address, 16))
                if (ip.is_loopback or int(scope, 16) == GLOBAL_SCOPE) and not int(flags, 16) & UNUSABLE_FLAGS:
                    found.append(Interface(name, f"{ip}/{int(prefix, 16)}"))
    except OSError:  # this system has no IPv6
        pass
    return found


def _ask(asking: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(asking.fileno(), request, struct.pack("256s", name.encode()[:15]))
