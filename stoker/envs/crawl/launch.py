"""Starts and surely stops the processes that serve sites.

Every process gets its sockets ready made, so the port is known before any of them runs, and keeps
the reading end of a pipe that ends with this process, even if it is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.site import SiteSettings
from stoker.errors import ConfigError, StokerError, WorkerError

HOST = "127.0.0.1"

_START_S = 60.0
_STOP_S = 2.0
_MOST_PROCESSES = 64


@contextlib.contextmanager
def serving(
    site: SiteSettings | None = None,
    conduct: Conduct | None = None,
    *,
    host: str = HOST,
    port: int = 0,
    processes: int = 1,
) -> Iterator[str]:
    """Serves sites from processes of their own for as long as the block lasts.

    Gives the base URL, as `http://127.0.0.1:8000/`; the site of seed 7 is at its `s/7/`. Port 0
    takes a free one.
    """
    with ServerProcesses(site, conduct, host=host, port=port, processes=processes) as servers:
        yield servers.url


class ServerProcesses:
    """Processes that serve sites at one address, from entering the block to leaving it."""

    def __init__(
        self,
        site: SiteSettings | None = None,
        conduct: Conduct | None = None,
        *,
        host: str = HOST,
        port: int = 0,
        processes: int = 1,
    ) -> None:
        problems = []
        if host not in (HOST, "localhost"):
            problems.append(
                f"host is {host!r}; sites are served on {HOST} alone, so that no other machine "
                "can reach them."
            )
        if not 0 <= port <= 65535:
            problems.append(f"port is {port}; it must be from 0 (any free one) to 65535.")
        if not 1 <= processes <= _MOST_PROCESSES:
            problems.append(f"processes is {processes}; it must be from 1 to {_MOST_PROCESSES}.")
        if processes > 1 and not hasattr(socket, "SO_REUSEPORT"):
            problems.append(
                f"processes is {processes}, but processes cannot share a port on this system; "
                "it must be 1."
            )
        if problems:
            raise ConfigError(problems)
        self._site = site or SiteSettings()
        self._conduct = conduct or Conduct()
        self._asked_port = port
        self._count = processes
        self._running: list[subprocess.Popen[bytes]] = []
        self.url = ""
        """Where they serve, known inside the block."""

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process in self._running]

    def __enter__(self) -> ServerProcesses:
        shared = _listening(self._asked_port, self._count)
        private = [_bound(0) for _ in range(self._count)] if self._count > 1 else []
        self.url = f"http://{HOST}:{shared[0].getsockname()[1]}/"
        try:
            for number in range(self._count):
                self._start(number, shared, private)
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        finally:
            for each in shared + private:
                each.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def wait(self) -> NoReturn:
        """Never returns; raises once one of the processes is gone."""
        by_pipe = {_output(process): process for process in self._running}
        ended = wait_for_any(list(by_pipe))
        process = next(process for pipe, process in by_pipe.items() if pipe in ended)
        raise WorkerError(
            f"A server process (pid {process.pid}) ended by itself, with exit code "
            f"{_exit_code(process)}. The others are stopped; start again."
        )

    def _start(
        self, number: int, shared: list[socket.socket], private: list[socket.socket]
    ) -> None:
        own = [each[number] for each in (shared, private) if each]
        ports = [each.getsockname()[1] for each in private]
        order = {
            "site": dataclasses.asdict(self._site),
            "conduct": dataclasses.asdict(self._conduct),
            "sockets": [each.fileno() for each in own],
            "siblings": ports[:number] + ports[number + 1 :],
        }
        known = os.environ.get("PYTHONPATH")
        root = str(Path(__file__).parents[3])
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker.envs.crawl.serve", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[each.fileno() for each in own],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *([known] if known else [])])},
            start_new_session=True,  # Ctrl-C reaches this process alone
        )
        self._running.append(process)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        for process in self._running:
            pipe = _output(process)
            if not wait_for_any([pipe], max(0.0, deadline - time.monotonic())):
                raise WorkerError(
                    f"A server process did not start within {_START_S:g} s. Is the machine "
                    "overloaded?"
                )
            if not os.read(pipe, 1):
                raise WorkerError(
                    f"A server process ended with exit code {_exit_code(process)} before it "
                    "listened; what it said stands above."
                )

    def _stop(self) -> None:
        """Ends every process: by the end of its pipe, and by force after a moment."""
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + _STOP_S
        for process in self._running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._running = []


def _output(process: subprocess.Popen[bytes]) -> int:
    """The pipe on which a process says that it listens, and that ends with it."""
    assert process.stdout is not None
    return process.stdout.fileno()


def _exit_code(process: subprocess.Popen[bytes]) -> int | str:
    """Of a process whose pipe has ended."""
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        return "unknown"


def _listening(port: int, count: int) -> list[socket.socket]:
    """So many sockets at one port; the kernel spreads connections over them."""
    try:
        first = _bound(port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} on {HOST} is taken. Stop what listens there, choose another port, "
                "or take 0 for any free one."
            ) from error
        raise StokerError(f"Cannot listen on {HOST}, port {port}: {error.strerror}.") from error
    if count == 1:
        return [first]
    port = first.getsockname()[1]
    first.close()  # it only showed that the port is free; those that share one would not notice
    return [_bound(port, shared=True) for _ in range(count)]


def _bound(port: int, shared: bool = False) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((HOST, port))
        bound.listen(1024)
    except BaseException:
        bound.close()
        raise
    return bound
