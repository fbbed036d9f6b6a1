"""A Ray cluster: how to come to it, what it has, and how to leave it. Only this file imports Ray.

Environments (`--pool ray`) and the trials of a sweep (`--engine ray`) run on it.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from stoker.errors import ConfigError, StokerError

_KNOCK_S = 5.0
_lock = threading.Lock()
_guests: list[object] = []
"""Who uses the connection that was made here; whoever leaves last ends it."""


class Machine(NamedTuple):
    """A node of the cluster that work can be sent to."""

    node: str
    address: str
    resources: Mapping[str, float]

    @property
    def cpus(self) -> int:
        return int(self.resources["CPU"])


def import_ray(wish: str) -> Any:
    """Ray, or an error that says how to have what `wish` names."""
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise StokerError(
            f"{wish} is ray, which is not installed: pip install 'stoker[ray]', on every machine "
            "of the cluster."
        ) from error
    return ray


@contextmanager
def connected(ray: Any) -> Iterator[None]:
    """Within it, this process is connected to the cluster.

    A connection that the user has made is used, and left as it is.
    """
    guest = object()
    with _lock:
        if not ray.is_initialized():
            _guests.clear()  # somebody else has ended theirs
            _connect(ray)
            _guests.append(guest)
        elif _guests:
            _guests.append(guest)
    try:
        yield
    finally:
        with _lock:
            if guest in _guests:
                _guests.remove(guest)
                if not _guests:
                    ray.shutdown()


def _connect(ray: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        _knock(os.environ.get("RAY_ADDRESS", ""))
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            "No Ray cluster was found. Start one with `ray start --head`, and `ray start "
            "--address HOST:6379` on the other machines; or say where it is with RAY_ADDRESS. "
            f"(What was tried: {str(error).strip().splitlines()[0]})"
        ) from error
    finally:
        with suppress(ValueError):  # in another thread Ray has not touched it
            signal.signal(signal.SIGTERM, before)  # Ray would leave at once, without a checkpoint


def _knock(address: str) -> None:
    """Raise if nobody answers at `host:port`: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "//" in host:
        return  # not given, or for Ray to make sense of
    try:
        socket.create_connection((host, int(port)), _KNOCK_S).close()
    except OSError as error:
        raise ConnectionError(f"RAY_ADDRESS is {address}, where nobody answers: {error}") from error


def machines(ray: Any) -> list[Machine]:
    """Those that live and have a core to give."""
    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]


def this_machine() -> str:
    """The node that this process is on; for actors, too."""
    return str(import_ray("this process").get_runtime_context().get_node_id())


def surroundings() -> dict[str, str]:
    """So that what can be imported here can be there, if it is at the same place."""
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
