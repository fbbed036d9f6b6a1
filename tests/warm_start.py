"""Runs `python -m stoker`, or a script, again and again, from a process that has imported torch.

Importing it takes seconds, which a test of what a command says and leaves need not wait for. This
process forks for each command; the fork begins in stoker's own code, and ends as any Python does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

_SLOW_TO_IMPORT = ("torch", "tensorboard.compat.proto.event_pb2", "gymnasium", "rich", "tyro")
_LONGEST = 1 << 20  # bytes of an order, most of which are environment variables


class WarmStart:
    """Such a process, as those see it who want commands run; it starts with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, words: tuple[str, ...], folder: Path, seconds: float, script: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """`python -m stoker WORDS` in `folder`, once all who could write what it says have ended.

        With `script` it is `python WORDS`.

        `TimeoutError` if they do not in so many seconds; they are killed then.
        """
        if self._process is None:
            self._start()
        order = {"words": words, "folder": str(folder), "environ": dict(os.environ)}
        order["program"] = words[0] if script else "stoker"
        (out, says_out), (error, says_error) = os.pipe(), os.pipe()
        socket.send_fds(self._orders, [json.dumps(order).encode()], [says_out, says_error])
        os.close(says_out)
        os.close(says_error)
        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(_all_of, place) for place in (out, error)]
            try:
                said = [one.result(timeout=seconds) for one in reading]
            except TimeoutError:
                self.close()
                raise
        return subprocess.CompletedProcess(words, int(self._orders.recv(_LONGEST)), *said)

    def _start(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        """End the process and, if it still runs one, its command."""
        if self._process is not None:
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.kill()
            self._process.kill()
            self._process.wait()
            self._orders.close()
            self._process = None


def _all_of(place: int) -> str:
    with open(place) as file:
        return file.read()


def _become(order: dict[str, Any], says: list[int]) -> None:
    """What a new process that runs a command begins with."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for number, place in enumerate([os.open(os.devnull, os.O_RDONLY), *says]):
        os.dup2(place, number)
        os.close(place)
    sys.path[0] = order["folder"]
    sys.argv = ["stoker", *order["words"]] if order["program"] == "stoker" else order["words"]
    importlib.invalidate_caches()


def _serve(orders: socket.socket) -> None:
    """Forks for every order there is; returns in each fork, and when there are no more."""
    while True:
        order, says, _, _ = socket.recv_fds(orders, _LONGEST, 2)
        if not order:
            return
        fork = os.fork()
        if not fork:
            orders.close()
            _become(json.loads(order), says)
            return
        for place in says:
            os.close(place)
        _, status = os.waitpid(fork, 0)
        orders.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    for name in _SLOW_TO_IMPORT:
        importlib.import_module(name)
    gc.freeze()
    _server = os.getpid()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    if os.getpid() != _server:
        if sys.argv[0] == "stoker":
            runpy.run_module("stoker", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
