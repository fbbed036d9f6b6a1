"""Starting worker processes: from a clean server, one BLAS thread each, safe from Ctrl-C."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


def process_context() -> Any:
    """`forkserver` where there is one: its workers hold no CUDA context and start quickly."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextlib.contextmanager
def starting_workers(context: Any) -> Iterator[None]:
    """Surroundings in which processes may be started; as before when it ends."""
    with _ctrl_c_held_back(), _worker_surroundings(context):
        yield


@contextlib.contextmanager
def _worker_surroundings(context: Any) -> Iterator[None]:
    """While workers start: one BLAS thread each, and no import of the user's main module.

    Multiprocessing would run the user's script again in every worker (and so import torch there).
    Cloudpickle sends what is defined in the script by value, so there is no need.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name, None) for name in ("__spec__", "__file__")}
    kept = {name: os.environ.get(name) for name in ONE_THREAD}
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["stoker.pools.worker"])
    try:
        os.environ.update({name: os.environ.get(name, one) for name, one in ONE_THREAD.items()})
        main.__spec__ = None
        if hidden["__file__"] is not None:
            del main.__file__
        yield
    finally:
        main.__spec__ = hidden["__spec__"]
        if hidden["__file__"] is not None:
            main.__file__ = hidden["__file__"]
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """While workers start: a Ctrl-C at the terminal does not reach them, and the trainer later.

    They inherit a mask that blocks it, as it would strike amid their imports. The mask is this
    thread's alone, and a thread of numpy's may take the signal instead: so the trainer's handler
    only notes it, lest the trainer lose sight of a worker that is half started.
    """
    noted: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    ours = handler is not None and threading.current_thread() is threading.main_thread()
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # its start unblocks SIGINT, so it comes first
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if ours:
        signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, handler)
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # what is pending arrives here
        if noted:
            signal.raise_signal(signal.SIGINT)
