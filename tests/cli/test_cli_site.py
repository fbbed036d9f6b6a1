"""`stoker site`: what is typed right serves; what is typed wrong is explained; signals end it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable

import psutil
import pytest

from stoker.cli.main import main

Start = Callable[..., "subprocess.Popen[str]"]


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    out, error = capsys.readouterr()
    return int(left.value.code or 0), out, error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serve --latency -1", ["latency is -1.0; it must be from 0 to 60."]),
        ("serve --errors 1.5", ["errors is 1.5; it must be from 0 to 1."]),
        ("serve --host 0.0.0.0", ["host is '0.0.0.0'", "127.0.0.1 alone"]),
        ("serve --port 70000", ["port is 70000", "65535"]),
        ("serve --processes 0", ["processes is 0", "1 to 64"]),
        ("serve --pages 5", ["pages is 5", "from 20 to 100000"]),
        ("serve --errors 0.7 --broken 0.7", ["more than 1"]),
        ("serve --latencies 1", ["--latencies"]),
        ("serv", ["no command 'serv'", "Did you mean serve?"]),
    ],
)
def test_a_mistake_is_explained_with_exit_code_2(
    words: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = called(capsys, "site", *words.split())
    assert code == 2
    for part in says:
        assert part in out + error
    assert "Traceback" not in out + error


def test_several_mistakes_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "site serve --latency -1 --pages 5 --host example.com --port -3"
    code, _, error = called(capsys, *words.split())
    assert code == 2
    assert error.count("error:") == 4


def test_a_port_that_is_taken_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, error = called(capsys, "site", "serve", "--port", str(port))
    assert (code, out) == (2, "")
    assert f"Port {port} on 127.0.0.1 is taken" in error


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "site")
    assert code == 0
    assert "stoker site serve --help" in out
    code, out, _ = called(capsys, "site", "serve", "--help")
    assert code == 0
    assert "usage: stoker site serve" in out
    for flag in ("--latency", "--tail", "--errors", "--broken", "--processes", "--pages"):
        assert flag in out


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_it_serves_until_a_signal_comes(
    start_stoker: Start, number: signal.Signals, code: int
) -> None:
    flags = ("--pages", "30", "--processes", "2", "--latency", "0.01", "--tail", "0.1")
    process = start_stoker("site", "serve", "--port", "0", *flags)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/")
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        with urllib.request.urlopen(f"{url}s/4/", timeout=30) as page:
            assert b"<nav>" in page.read()
        with urllib.request.urlopen(f"{url}stats", timeout=30) as answer:
            assert json.load(answer)["by_seed"] == {"4": 1}
        start = time.monotonic()
        process.send_signal(number)
        out, error = process.communicate(timeout=20)
        taken = time.monotonic() - start
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == code
    assert taken < 5
    assert out == ""
    assert "Traceback" not in error
    assert "error" not in error
    assert psutil.wait_procs(children, timeout=2)[1] == []
