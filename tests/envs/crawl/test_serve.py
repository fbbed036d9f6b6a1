"""Sites over real sockets: the right bytes, exact counts, faults on demand, nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import psutil
import pytest

from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.connection import Reply
from stoker.envs.crawl.launch import ServerProcesses, serving
from stoker.envs.crawl.site import Site, SiteSettings
from stoker.errors import ConfigError, WorkerError

SMALL = SiteSettings(pages=60)


class Answer:
    """Status, headers and body of one request on a connection of its own."""

    def __init__(self, url: str, method: str = "GET") -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        try:
            connection.request(method, parts.path + f"?{parts.query}" * bool(parts.query))
            response = connection.getresponse()
            self.status = response.status
            self.headers = response.headers
            self.body = response.read()
        finally:
            connection.close()


def stats(url: str) -> dict[str, Any]:
    counted: dict[str, Any] = json.loads(Answer(f"{url}stats").body)
    return counted


def gone(pid: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def calm() -> Iterator[str]:
    with serving(SMALL) as url:
        yield url


def test_what_is_served_is_what_the_site_says(calm: str) -> None:
    for seed in (1, 2):
        site = Site(SiteSettings(seed=seed, pages=60), prefix=f"/s/{seed}")
        for path in [*site.graph(), "/calendar/2026/11?page=3"]:
            page = site.page(path)
            answer = Answer(f"{calm}s/{seed}{path}")
            assert page is not None
            assert (answer.status, answer.body) == (200, page.body)
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"


def test_links_can_be_followed_as_they_are_written(calm: str) -> None:
    site = Site(SiteSettings(seed=3, pages=60), prefix="/s/3")
    followed = 0
    for path in list(site.graph())[::6]:
        page = site.page(path)
        assert page is not None
        for link in page.links:
            if link.path is not None:
                wanted = site.page(link.path)
                assert wanted is not None
                target = urljoin(f"{calm}s/3{path}", link.href).partition("#")[0]
                assert Answer(target).body == wanted.body
                followed += 1
    assert followed > 100


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("", "GET", 200),
        ("healthz", "GET", 200),
        ("s/1/", "HEAD", 200),
        ("s/1/", "POST", 405),
        ("s/1", "GET", 301),
        ("s/1/nowhere", "GET", 404),
        ("s/-1/", "GET", 404),
        ("s/one/", "GET", 404),
        ("s/99999999999999999999/", "GET", 404),
        ("s/" + "9" * 5000 + "/", "GET", 404),
        ("s/" + "0" * 5000 + "/", "GET", 404),
        ("healthz", "POST", 405),
        ("elsewhere", "DELETE", 405),
        ("s//", "GET", 404),
        ("elsewhere", "GET", 404),
    ],
)
def test_every_request_has_its_status(calm: str, path: str, method: str, status: int) -> None:
    assert Answer(calm + path, method).status == status


def test_a_site_without_its_slash_is_sent_to_its_home(calm: str) -> None:
    assert Answer(f"{calm}s/7").headers["Location"] == "/s/7/"


def test_a_connection_is_kept(calm: str) -> None:
    parts = urlsplit(calm)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.connect()
    used = connection.sock
    for _ in range(3):
        connection.request("GET", "/s/1/")
        connection.getresponse().read()
        assert connection.sock is used
    connection.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_counts_are_exact_over_all_processes(processes: int) -> None:
    with ServerProcesses(SMALL, processes=processes) as servers:
        url = servers.url
        assert len(servers.pids) == processes
        for number in range(30):
            Answer(f"{url}s/{number % 3}/")
        for _ in range(4):
            Answer(f"{url}s/9/nowhere")
        Answer(f"{url}elsewhere")
        Answer(f"{url}healthz")
        counted = stats(url)
    assert counted == {
        "requests": 35,
        "by_status": {"200": 30, "404": 5},
        "by_seed": {"0": 10, "1": 10, "2": 10, "9": 4},
        "faults": {},
        "processes": processes,
    }


def outcomes(url: str) -> list[str]:
    """What three rounds over the same addresses meet: a status, broken HTML, or a reset."""
    met = []
    site = Site(SiteSettings(seed=5, pages=60), prefix="/s/5")
    for path in list(site.graph())[:20] * 3:
        whole, broken = site.page(path), site.page(path, broken=True)
        assert whole is not None
        assert broken is not None
        try:
            answer = Answer(f"{url}s/5{path}")
        except ConnectionError:
            met.append("reset")
            continue
        if answer.status == 200:
            assert answer.body in (whole.body, broken.body)
        met.append("broken" if answer.body == broken.body else str(answer.status))
    return met


def test_faults_come_as_often_as_asked_and_the_same_again() -> None:
    conduct = Conduct(seed=1, errors=0.2, resets=0.2, broken=0.2)
    runs = []
    for _ in range(2):
        with serving(SMALL, conduct) as url:
            met = outcomes(url)
            counted = stats(url)
        runs.append(met)
        assert counted["requests"] == 60
        assert counted["faults"] == {
            "error": met.count("500"),
            "reset": met.count("reset"),
            "broken": met.count("broken"),
        }
        assert counted["by_status"]["reset"] == met.count("reset")
    assert runs[0] == runs[1]
    assert all(4 <= runs[0].count(kind) <= 24 for kind in ("200", "500", "reset", "broken"))
    assert runs[0][:20] != runs[0][20:40], "each time an address is asked for is drawn apart"


def test_a_slow_body_trickles_and_arrives_whole() -> None:
    site = Site(SiteSettings(seed=1, pages=60), prefix="/s/1")
    page = site.page("/")
    assert page is not None
    with serving(SMALL, Conduct(slow=1.0, slow_seconds=0.4)) as url:
        start = time.monotonic()
        assert Answer(f"{url}s/1/").body == page.body
        assert time.monotonic() - start >= 0.3
        assert stats(url)["faults"] == {"slow": 1}


def test_requests_wait_together_not_one_after_another() -> None:
    """40 requests of half a second each take about as long as one."""
    with serving(SMALL, Conduct(latency=0.5, jitter=0.0)) as url:
        threads = [threading.Thread(target=Answer, args=(f"{url}s/1/",)) for _ in range(40)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = time.monotonic() - start
        assert stats(url)["requests"] == 40
    assert 0.5 <= taken < 10


def test_a_request_counts_though_its_client_hangs_up() -> None:
    with serving(SMALL, Conduct(latency=0.2)) as url:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as client:
            client.sendall(b"GET /s/1/ HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        deadline = time.monotonic() + 20
        while not (counted := stats(url))["requests"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert counted["by_status"] == {"200": 1}, "the one behind it was never begun"


def test_what_is_refused_counts_as_no_request(calm: str) -> None:
    before = stats(calm)
    with socket.create_connection(("127.0.0.1", urlsplit(calm).port or 0), timeout=30) as client:
        client.sendall(b"GET /s/1/ HTTP/1.1\r\nContent-Length: 2\r\n\r\nno")
        assert client.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert stats(calm) == before


def test_delays_have_the_mean_and_the_tail_asked_for() -> None:
    def delays(**changes: Any) -> list[float]:
        conduct = Conduct(latency=0.1, **changes)
        return [conduct.fate(1, f"/{n}", 0).delay for n in range(20_000)]

    plain = delays()
    assert sum(plain) / len(plain) == pytest.approx(0.1, rel=0.01)
    assert (min(plain), max(plain)) == pytest.approx((0.075, 0.125), rel=0.01)
    assert set(delays(jitter=0.0)) == {0.1}
    tailed = sorted(delays(tail=0.1, tail_multiple=20.0))
    assert tailed[17_500] < 0.13
    assert tailed[18_500] >= 1.0
    assert max(tailed) <= 20.0
    assert sum(tailed[18_000:]) / 2000 == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"latency": -0.1}, "latency is -0.1; it must be from 0 to 60."),
        ({"errors": 1.5}, "errors is 1.5; it must be from 0 to 1."),
        ({"tail": float("nan")}, "tail is nan"),
        ({"tail_multiple": 0.5}, "tail_multiple is 0.5; it must be from 1 to 1000."),
        ({"seed": -1}, "seed is -1"),
        ({"errors": 0.6, "resets": 0.6}, "errors 0.6 + resets 0.6 + broken 0 + slow 0 is more"),
    ],
)
def test_conduct_that_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Conduct(**wrong)
    assert says in str(caught.value)


def test_counts_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.envs.crawl import serve

    for name, limit in (("_SEEDS", 4), ("_ADDRESSES", 5)):
        monkeypatch.setattr(serve, name, limit)
    server = serve.SiteServer(SiteSettings(pages=20), Conduct(broken=0.5))

    class Client:
        def answer(self, given: Reply) -> None:
            assert given.status == 200

    for seed in range(9):
        for path in ("", "calendar/2026/01"):
            server.handle(Client(), "GET", f"/s/{seed}/{path}")  # type: ignore[arg-type]
    counts = server.counts()
    assert counts["requests"] == 18
    assert counts["by_seed"] == {"others": 10, "5": 2, "6": 2, "7": 2, "8": 2}
    assert len(server._asked) == 5


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", ""])
def test_any_other_host_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"served on 127\.0\.0\.1 alone"):
        ServerProcesses(host=host)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_taken_is_refused_even_by_one_that_would_share(processes: int) -> None:
    with serving(SMALL, processes=processes) as url:
        port = urlsplit(url).port or 0
        for other in (1, 2):
            with (
                pytest.raises(ConfigError, match=f"Port {port} on 127.0.0.1 is taken"),
                serving(SMALL, port=port, processes=other),
            ):
                pass
        assert Answer(f"{url}healthz").status == 200
    with serving(SMALL, port=port) as again:
        assert again == url


def test_only_this_machine_can_connect(calm: str) -> None:
    port = urlsplit(calm).port
    bound = {c.laddr for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port}
    assert {address.ip for address in bound} == {"127.0.0.1"}


def test_it_stops_at_once_with_requests_under_way() -> None:
    with ServerProcesses(SMALL, Conduct(latency=50.0), processes=2) as servers:
        pids = servers.pids
        waiting = [socket.create_connection(("127.0.0.1", urlsplit(servers.url).port or 0))]
        waiting[0].sendall(b"GET /s/1/ HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.2)
        start = time.monotonic()
    assert time.monotonic() - start < 4
    waiting[0].close()
    assert all(gone(pid, 1) for pid in pids)


def test_a_process_that_hangs_is_stopped_too() -> None:
    with ServerProcesses(SMALL) as servers:
        (pid,) = servers.pids
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
    assert time.monotonic() - start < 6
    assert gone(pid, 1)


def test_a_process_that_dies_is_noticed() -> None:
    with ServerProcesses(SMALL, processes=2) as servers:
        first, second = servers.pids
        os.kill(second, signal.SIGKILL)
        with pytest.raises(WorkerError, match=f"pid {second}.* exit code -9"):
            servers.wait()
    assert gone(first, 1)


def test_a_process_that_cannot_start_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "sitecustomize.py"
    broken.write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerError, match="exit code 7 before it listened"), serving(SMALL):
        pass


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    program = (
        "import time\n"
        "from stoker.envs.crawl.launch import ServerProcesses\n"
        "with ServerProcesses(processes=2) as servers:\n"
        "    print(*servers.pids, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        parent.kill()
        parent.communicate()
    assert all(gone(pid, 5) for pid in pids)


def test_it_needs_no_aiohttp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(SMALL, Conduct(latency=0.001), processes=2) as url:
        assert Answer(f"{url}s/1/").status == 200
        assert stats(url)["processes"] == 2
