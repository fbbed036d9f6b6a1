"""Which hosts may be asked, and which addresses dialled.

A host is compared in one spelling only (`canonical_host`), and a spelling that some program might
read as another host is refused. A name on the list does not vouch for where it leads: an address
that is not public must be on the list itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPELLED_TWO_WAYS = "\u00df\u03c2\u200c\u200d"
"""IDNA 2003, which Python has, and IDNA 2008 make different hosts of these."""


class AllowList:
    """`host` stands for all its ports, `host:port` for that one."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = {split_entry(entry) for entry in entries}

    def allows(self, host: str, port: int) -> bool:
        """Whether a host, spelled as by `canonical_host`, may be asked."""
        return (host, port) in self._entries or (host, None) in self._entries

    def allows_address(self, address: str, port: int) -> bool:
        """Whether what a name led to may be dialled: it is public, or on the list itself."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return is_public(found) or self.allows(str(mapped or found), port)


def split_entry(entry: str) -> tuple[str, int | None]:
    """Host and port of an entry of the allow-list; `ValueError` says what is wrong with it."""
    if any(mark in entry for mark in "/@?#*"):
        raise ValueError("expected a host or host:port, without scheme, path, user or wildcard")
    bracketed = re.fullmatch(r"(\[[^\]]*\])(?::(\d+))?", entry)
    if bracketed:
        host, port = bracketed.groups()
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    else:
        host, port = entry, None
    if port is not None and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is not a port (1 to 65535)")
    return canonical_host(host), None if port is None else int(port)


@lru_cache
def canonical_host(host: str) -> str:
    """The one spelling of a host: lower case, ASCII, without a last dot or brackets.

    Raises `ValueError` for what is no host, and for a number that is not an address in its usual
    form (`127.1`, `0x7f000001`, `2130706433`), since some programs do read it as one.
    """
    if len(host) > 255:
        raise ValueError(f"a host of {len(host)} characters; 255 are allowed")
    if host.startswith("[") and host.endswith("]"):
        return _canonical_ipv6(host[1:-1])
    if ":" in host:
        return _canonical_ipv6(host)
    name = _ascii(host).lower().removesuffix(".")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(name) > 253:
        raise ValueError(f"{name!r} is not the name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ValueError(
                f"{name!r} is a number, but not an address in its usual form (like 127.0.0.1)"
            ) from None
    return name


def _canonical_ipv6(host: str) -> str:
    if "%" in host:
        raise ValueError(f"{host!r} names a network interface, which an address here may not")
    return str(ipaddress.IPv6Address(host))


def _ascii(host: str) -> str:
    if host.isascii():
        return host
    if any(mark in host for mark in _SPELLED_TWO_WAYS):
        raise ValueError(f"{host!r} has two spellings in ASCII; write the one meant (xn--...)")
    return host.encode("idna").decode("ascii")


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet, and to one machine there."""
    carried = _carried(address)
    if carried is not None:
        return is_public(carried)
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
