"""Training on sites whose servers fail in every way there is, or are away for a while."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import HOME, Server, Visitor, redirect, reply, silent, slow_body, slow_headers

from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.launch import serving

N_ENVS = 16
WORDS = f"""train --env stoker/Crawl-v0 --pool io --n-envs {N_ENVS} --n-steps 16 --batch-size 64
--network-arch 32 --eval-episodes 0 --json --device cpu --runs-dir runs --run-name crawl"""

NOTE_CONNECTIONS = """
import importlib.util, os, sys

known = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "uvloop" else known(name, *more)

def note(event, given):
    if event == "socket.connect" and isinstance(given[1], tuple):
        with open(os.environ["CONNECTIONS"], "a") as file:
            file.write("%s:%s\\n" % given[1][:2])

sys.addaudithook(note)
"""
"""For `sitecustomize`: every process of the run notes where it connects to. uvloop does so in C,
unseen, and is not found."""


def start(folder: Path, env_kwargs: dict[str, Any], more: str, **env: str) -> subprocess.Popen[str]:
    words = WORDS.split() + more.split()
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *words, "--env-kwargs", json.dumps(env_kwargs)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def end(training: subprocess.Popen[str]) -> dict[str, Any]:
    """What a training says that went well."""
    out, err = training.communicate(timeout=200)
    assert training.returncode == 0, err
    outcome: dict[str, Any] = json.loads(out)
    assert outcome["state"] == "finished"
    metrics: dict[str, Any] = outcome["metrics"]
    assert metrics["faults/env_errors"] == metrics["faults/hangs"] == 0, err
    return metrics


def test_training_goes_on_past_a_server_that_fails(tmp_path: Path) -> None:
    with serving(conduct=Conduct(errors=0.03, resets=0.02, broken=0.1)) as base:
        kwargs = {"start": base + "s/{site}/", "sites": 20, "budget": 20, "limits": {"retries": 0}}
        metrics = end(start(tmp_path, kwargs, "--timesteps 1024"))
        stats = json.load(urllib.request.urlopen(base + "stats"))
    failed = stats["faults"]["error"] + stats["faults"]["reset"]
    assert 0 < metrics["faults/cut_episodes"] <= failed
    assert stats["requests"] > 500


def test_training_goes_on_after_a_server_was_away(tmp_path: Path) -> None:
    """For ten seconds, amid steps: those are cut off, and the episodes after them wait for it."""
    with serving(conduct=Conduct(latency=0.02)) as base:
        kwargs = {"start": base + "s/{site}/", "sites": 20, "budget": 20}
        training = start(tmp_path, kwargs, "--timesteps 4096")
        wait_until(lambda: requests_of(base) > 1000)
    port = int(base.rsplit(":", 1)[1].rstrip("/"))
    time.sleep(10)
    assert training.poll() is None, "it waits"
    with serving(conduct=Conduct(latency=0.02), port=port):
        metrics = end(training)
        assert requests_of(base) > 500
    assert metrics["faults/cut_episodes"] >= 1
    assert metrics["rollout/ep_len_mean"] > 0


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.1)


def requests_of(base: str) -> int:
    return int(json.load(urllib.request.urlopen(base + "stats"))["requests"])


async def resets(visitor: Visitor) -> None:
    visitor.reset()


async def gigabyte(visitor: Visitor) -> None:
    await visitor.send(reply(b"", sized=False, connection="close", content_type="text/html"))
    for _ in range(1024):
        await visitor.send(b"." * (1 << 20))


def answering(answer: bytes) -> Callable[[Visitor], Awaitable[None]]:
    async def handle(visitor: Visitor) -> None:
        await visitor.send(answer)

    return handle


BOMB = gzip.compress(bytes(64 << 20))
HTML = "text/html; charset=utf-8"
FAILING = {
    "/slow-headers": slow_headers,
    "/slow-body": slow_body,
    "/hang": silent,
    "/500": answering(reply(b"", "500 Oh")),
    "/reset": resets,
    "/elsewhere": answering(redirect("http://127.0.0.2:9/")),
    "/private": answering(redirect("http://10.0.0.1/")),
    "/gigabyte": gigabyte,
    "/bomb": answering(reply(BOMB, content_encoding="gzip", content_type=HTML)),
}
STRANGE = {
    "/encoding": answering(reply(b"<p>\xff\xfe\x80</p>", content_type=HTML)),
    "/html": answering(reply(b"<a href=/html?a<li><a href='/html?b'></nav>", content_type=HTML)),
}
LINKS = "".join(f'<li><a href="{path}">{path[1:]}</a></li>' for path in {**FAILING, **STRANGE})
HOME_PAGE = reply(f"<body><ul>{LINKS}</ul></body>".encode(), content_type=HTML)


@contextmanager
def in_a_thread(server: Server) -> Iterator[None]:
    """Serves while the block lasts."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_training_on_a_site_where_everything_goes_wrong(tmp_path: Path) -> None:
    async def handle(visitor: Visitor) -> None:
        path = visitor.path.partition("?")[0]
        await {**FAILING, **STRANGE}.get(path, answering(HOME_PAGE))(visitor)

    (tmp_path / "sitecustomize.py").write_text(NOTE_CONNECTIONS)
    noted = tmp_path / "connections"
    with in_a_thread(server := Server(handle)):
        limits = {"allowed_hosts": [server.address], "connect_s": 5, "read_s": 0.5, "total_s": 1}
        limits |= {"retries": 0, "max_body_bytes": 1 << 20, "max_decompressed_bytes": 1 << 20}
        limits |= {"breaker_failures": 10_000}
        kwargs = {"start": server.url(), "sites": 1, "budget": 3, "limits": limits}
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        training = start(
            tmp_path, kwargs, "--timesteps 384", PYTHONPATH=path, CONNECTIONS=str(noted)
        )
        metrics = end(training)
    visits = [path.partition("?")[0] for path in server.paths]
    assert set(visits) == {"/", *FAILING, *STRANGE}, "all of it was met"
    failed, resent = sum(path in FAILING for path in visits), visits.count("/reset") // 2
    probed_or_in_flight = 10 + N_ENVS
    assert failed - resent - probed_or_in_flight <= metrics["faults/cut_episodes"] <= failed
    assert set(noted.read_text().split()) == {f"{HOME}:{server.port}"}, "nothing left the list"
