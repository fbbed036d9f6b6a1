"""What a fetcher may do, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.envs.crawl.allow import split_entry
from stoker.errors import ConfigError

_POSITIVE_SECONDS = ("connect_s", "read_s", "total_s", "breaker_cooldown_s")
_SECONDS = ("retry_base_s", "retry_cap_s")
_COUNTS = {
    "max_body_bytes": 1,
    "max_decompressed_bytes": 1,
    "retries": 0,
    "max_redirects": 0,
    "breaker_failures": 1,
    "max_connections": 1,
}
"""The least that each may be."""


@dataclass(frozen=True)
class Limits:
    """Every limit of a fetcher. The default list of hosts is this machine alone."""

    allowed_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
    """Who may be asked, redirects included: `host` for all its ports, or `host:port`. No
    wildcards. An address that is not public must be listed itself, whatever name leads to it."""

    connect_s: float = 5.0
    """Longest wait for a connection: once for the name, once for the handshakes."""

    read_s: float = 10.0
    """Longest wait between two pieces of an answer, and for its first."""

    total_s: float = 30.0
    """Longest wait for a page in all: its turn, all redirects, retries and pauses."""

    max_body_bytes: int = 4 << 20
    """Largest body as it is sent; what comes after is not read."""

    max_decompressed_bytes: int = 16 << 20
    """Largest body once decompressed."""

    retries: int = 2
    """How often a page is asked for again after a fault that may pass, redirects included."""

    retry_base_s: float = 0.1
    """The pause before retry n is random, up to this times 2 ** (n - 1)."""

    retry_cap_s: float = 5.0
    """Longest pause before a retry, whatever a Retry-After header says."""

    max_redirects: int = 5
    """How many redirects are followed for a page."""

    breaker_failures: int = 5
    """Failures in a row after which a host is left alone."""

    breaker_cooldown_s: float = 10.0
    """How long it is left alone; then a single request tries whether it is back."""

    requests_per_s: float | None = None
    """Pace of the requests to a host, evenly spaced; None is no limit."""

    max_connections: int = 64
    """Requests under way to a host at a time; others queue in the order they came."""

    def __post_init__(self) -> None:
        problems = [*_wrong_hosts(self.allowed_hosts), *self._wrong_numbers()]
        if problems:
            raise ConfigError(problems)

    def _wrong_numbers(self) -> Iterator[str]:
        for name in _POSITIVE_SECONDS:
            value = getattr(self, name)
            if not (_is_number(value) and value > 0):
                yield f"{name} is {value!r}; expected seconds, more than 0"
        for name in _SECONDS:
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                yield f"{name} is {value!r}; expected seconds, at least 0"
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if not (_is_number(value) and isinstance(value, int) and value >= least):
                yield f"{name} is {value!r}; expected a whole number, at least {least}"
        pace = self.requests_per_s
        if pace is not None and not (_is_number(pace) and pace > 0):
            yield f"requests_per_s is {pace!r}; expected a number above 0, or None for no limit"
        sent, unpacked = self.max_body_bytes, self.max_decompressed_bytes
        if _is_number(sent) and _is_number(unpacked) and unpacked < sent:
            yield (
                f"max_decompressed_bytes is {unpacked}, less than max_body_bytes ({sent}); a body "
                "that is not compressed must fit into both. Raise the first or lower the second."
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong_hosts(hosts: object) -> Iterator[str]:
    if not isinstance(hosts, tuple) or not hosts or not all(isinstance(h, str) for h in hosts):
        yield (
            f"allowed_hosts is {hosts!r}; expected a tuple of at least one 'host' or 'host:port', "
            "such as ('127.0.0.1:8080',)"
        )
        return
    for entry in hosts:
        try:
            split_entry(entry)
        except ValueError as error:
            yield f"allowed_hosts has {entry!r}: {error}"
