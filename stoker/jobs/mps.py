"""MPS, NVIDIA's server that lets kernels of several processes run at the same time on a GPU.

A control daemon of our own, in a private folder, that ends with us.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_PATIENCE_S = 20.0
_LEAVES_WITHIN_S = 15.0
# Standard input ends when we do, even by kill -9; the daemon then waits for its clients to leave.
_GUARD = f'cat > /dev/null; echo quit | {_CONTROL}; rm -rf "$0"'
_TRIAL = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
code = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
sys.exit(code or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
"""


class Mps:
    """A daemon, from `start` to `close`. `surroundings` are for processes that are to use it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.why_not: str | None = "it was not started"
        """Why it does not run; None while it does."""

    @property
    def surroundings(self) -> dict[str, str]:
        if self._folder is None:
            return {}
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    def start(self) -> bool:
        """Whether it runs, and a process can compute through it."""
        self.why_not = self._start()
        if self.why_not is not None:
            self.close()
        return self.why_not is None

    def _start(self) -> str | None:
        if shutil.which(_CONTROL) is None:
            return f"{_CONTROL} is not installed"
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-mps-"))  # a socket's path must be short
        for name in ("pipe", "log"):
            (self._folder / name).mkdir()
        wrong = self._failure([_CONTROL, "-d"])
        if wrong is not None:
            return f"it cannot be started: {wrong}"
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | self.surroundings,
            start_new_session=True,
        )
        wrong = self._failure([sys.executable, "-c", _TRIAL])
        return None if wrong is None else f"a process cannot compute through it: {wrong}"

    def _failure(self, command: list[str]) -> str | None:
        """What went wrong with a command; None if nothing."""
        with tempfile.TemporaryFile("w+") as said:  # no pipe, which a daemon would keep open
            try:
                done = subprocess.run(
                    command,
                    env=os.environ | self.surroundings,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    timeout=_PATIENCE_S,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            said.seek(0)
            last = said.read().strip().splitlines()[-1:]
        return None if done.returncode == 0 else ": ".join([f"code {done.returncode}", *last])

    def close(self) -> None:
        """End the daemon, once its clients have left; a second time does nothing."""
        guard, self._guard = self._guard, None
        folder, self._folder = self._folder, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            try:
                guard.wait(_LEAVES_WITHIN_S)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
