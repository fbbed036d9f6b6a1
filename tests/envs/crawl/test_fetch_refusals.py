"""Hosts, addresses and redirects that are refused: nobody connects to where it is not allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fetching import PATIENT, Run, refused
from servers import HOME, Server, by_path, redirect, reply, saying

from stoker.envs.crawl.fetch import Fetcher
from stoker.envs.crawl.limits import Limits

ELSEWHERE = "127.0.0.2"
"""Another address of this machine, which stands for one inside of somebody's network."""


class Names:
    """A resolver with its answers in turn, the last one from then on. Notes what it was asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def only(*hosts: str) -> Limits:
    return replace(PATIENT, allowed_hosts=hosts)


def test_a_host_that_is_not_on_the_list(run: Run) -> None:
    async def test() -> None:
        async with Server() as server, Server() as other, Fetcher(only(server.address)) as fetcher:
            assert (await fetcher.get(server.url())).status == 200
            error = await refused(fetcher, other.url(), "refused-host")
            assert f"port {other.port}" in str(error)
            assert "allowed_hosts" in str(error)
            await refused(fetcher, f"http://localhost:{server.port}/", "refused-host")
            assert other.connections == 0
            assert server.connections == 1

    run(test())


@pytest.mark.parametrize("status", ["301 A", "302 B", "303 C", "307 D", "308 E"])
def test_redirects_are_followed(run: Run, status: str) -> None:
    async def test() -> None:
        pages = {"/a/b": redirect("../c?d=e", status), "/c?d=e": reply(b"here")}
        async with Server(by_path(pages)) as server, Fetcher(PATIENT) as fetcher:
            page = await fetcher.get(server.url("/a/b"))
            assert (page.url, page.text, page.attempts) == (server.url("/c?d=e"), "here", 2)
            assert (fetcher.counts.redirects, fetcher.counts.requests) == (1, 2)
            assert server.connections == 1

    run(test())


def test_a_redirect_within_the_list_to_another_server(run: Run) -> None:
    async def test() -> None:
        async with Server(saying(reply(b"there"))) as other:
            handler = saying(redirect(other.url("/x")))
            async with Server(handler) as server:
                async with Fetcher(only(server.address, other.address)) as fetcher:
                    assert (await fetcher.get(server.url())).text == "there"
                async with Fetcher(only(server.address)) as fetcher:
                    error = await refused(fetcher, server.url(), "refused-host")
                    assert error.url == other.url("/x")
                    assert f"A redirect from {server.url()} led there" in str(error)
            assert other.paths == ["/x"]

    run(test())


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("http://example.com/", "refused-host"),
        ("//example.com/", "refused-host"),
        ("http://10.0.0.1/", "refused-host"),
        ("http://169.254.169.254/latest/meta-data/", "refused-host"),
        ("http://{elsewhere}/", "refused-host"),
        ("http://[::ffff:127.0.0.2]:{port}/", "refused-host"),
        ("http://2130706434:{port}/", "url"),
        ("http://0x7f.2:{port}/", "url"),
        ("http://127.2:{port}/", "url"),
        ("http://{home}@{elsewhere}/", "url"),
        ("http://{home}\\@{elsewhere}/", "url"),
        ("http://{home}:x/", "url"),
        ("file:///etc/passwd", "scheme"),
        ("ftp://{elsewhere}/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("data:text/html,hello", "scheme"),
        ("", "redirect"),
    ],
)
def test_a_redirect_that_leaves_the_list_is_not_followed(
    run: Run, location: str, kind: str
) -> None:
    """A second server listens where the redirects lead, and nobody comes."""

    async def test() -> None:
        async with Server(host=ELSEWHERE) as other:
            pages: dict[str, bytes] = {}
            async with (
                Server(by_path(pages)) as server,
                Fetcher(replace(only(server.address), retries=3)) as fetcher,
            ):
                pages["/"] = redirect(
                    location.format(home=HOME, port=other.port, elsewhere=other.address)
                )
                await refused(fetcher, server.url(), kind)
                assert server.paths == ["/"]
                assert fetcher.counts.requests == 1
            assert other.connections == 0

    run(test())


@pytest.mark.parametrize(
    ("pages", "visits"),
    [
        ({"/": redirect("/")}, 1),
        ({"/": redirect("/a"), "/a": redirect("/b"), "/b": redirect("/a#c")}, 3),
    ],
)
def test_redirects_in_a_circle(run: Run, pages: dict[str, bytes], visits: int) -> None:
    async def test() -> None:
        async with Server(by_path(pages)) as server, Fetcher(PATIENT) as fetcher:
            error = await refused(fetcher, server.url(), "redirect")
            assert "in a circle" in str(error)
            assert len(server.paths) == visits

    run(test())


@pytest.mark.parametrize("length", [3, 4])
def test_no_more_redirects_than_the_limit(run: Run, length: int) -> None:
    async def test() -> None:
        pages = {f"/{hop}": redirect(f"/{hop + 1}") for hop in range(length)}
        pages[f"/{length}"] = reply(b"at last")
        async with (
            Server(by_path(pages)) as server,
            Fetcher(replace(PATIENT, max_redirects=3)) as fetcher,
        ):
            if length == 3:
                assert (await fetcher.get(server.url("/0"))).text == "at last"
            else:
                error = await refused(fetcher, server.url("/0"), "redirect")
                assert "max_redirects is 3" in str(error)
            assert server.paths == [f"/{hop}" for hop in range(4)]

    run(test())


def test_a_redirect_with_a_huge_body_is_followed_unread(run: Run) -> None:
    async def test() -> None:
        moved = reply(b"." * 10_000_000, "302 Found", location="/there")
        pages = {"/": moved, "/there": reply(b"there")}
        async with Server(by_path(pages)) as server, Fetcher(PATIENT) as fetcher:
            assert (await fetcher.get(server.url())).text == "there"
            assert fetcher.counts.body_bytes == len("there")

    run(test())


@pytest.mark.parametrize(
    "address",
    [
        ELSEWHERE,
        "::1",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::ffff:127.0.0.2",
        "::ffff:10.0.0.1",
        "::127.0.0.2",
        "64:ff9b::7f00:2",
        "2002:7f00:2::",
        "fe80::1",
        "fe80::1%lo",
        "fec0::1",
        "fd00::1",
        "ff02::1",
        "not an address",
    ],
)
def test_a_name_that_leads_into_a_network(run: Run, address: str) -> None:
    async def test() -> None:
        async with Server(host=ELSEWHERE) as inside:
            names = Names([address])
            limits = replace(only("site.test"), retries=3)
            async with Fetcher(limits, resolve=names) as fetcher:
                url = f"http://site.test:{inside.port}/"
                error = await refused(fetcher, url, "private-address")
                assert f"site.test leads to {address}" in str(error)
                assert names.asked == [("site.test", inside.port)]
                assert fetcher.counts.connections == 0
            assert inside.connections == 0

    run(test())


def test_a_name_that_leads_nowhere(run: Run) -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    async def test() -> None:
        async with Fetcher(only("site.test"), resolve=unknown) as fetcher:
            error = await refused(fetcher, "http://site.test/", "connection")
            assert "not known" in str(error)

    run(test())


def test_an_address_on_the_list_may_be_dialled_by_name(run: Run) -> None:
    async def test() -> None:
        async with Server() as server:
            names = Names([HOME])
            async with Fetcher(only("site.test", server.address), resolve=names) as fetcher:
                page = await fetcher.get(f"http://site.test:{server.port}/")
                assert page.url == f"http://site.test:{server.port}/"
            assert server.visitors[0].header("Host") == f"site.test:{server.port}"
            async with Fetcher(only("site.test", f"{HOME}:1"), resolve=names) as fetcher:
                await refused(fetcher, f"http://site.test:{server.port}/", "private-address")
            assert server.connections == 1

    run(test())


def test_of_several_addresses_only_those_allowed_are_dialled(run: Run) -> None:
    async def test() -> None:
        async with Server() as server, Server(host=ELSEWHERE, port=server.port) as inside:
            names = Names([ELSEWHERE, "10.0.0.1", HOME])
            async with Fetcher(only("site.test", HOME), resolve=names) as fetcher:
                assert (await fetcher.get(f"http://site.test:{server.port}/")).status == 200
            assert (server.connections, inside.connections) == (1, 0)

    run(test())


def test_a_name_that_changes_its_mind_after_the_check(run: Run) -> None:
    """One lookup a connection: what was checked is dialled, and the next is checked anew."""

    async def test() -> None:
        async with Server() as server, Server(host=ELSEWHERE, port=server.port) as inside:
            names, url = Names([HOME], [ELSEWHERE]), f"http://site.test:{server.port}/"
            limits = only("site.test", HOME)
            async with Fetcher(limits, resolve=names) as fetcher:
                assert (await fetcher.get(url)).status == 200
                assert len(names.asked) == 1
                assert (server.connections, inside.connections) == (1, 0)
            async with Fetcher(limits, resolve=names) as fetcher:
                await refused(fetcher, url, "private-address")
                assert len(names.asked) == 2
            assert (server.connections, inside.connections) == (1, 0)

    run(test())


def test_this_machine_by_its_name(run: Run) -> None:
    """The defaults, and the resolver of the system."""

    async def test() -> None:
        async with Server() as server, Fetcher() as fetcher:
            assert (await fetcher.get(f"http://LOCALHOST.:{server.port}/")).status == 200

    run(test())
