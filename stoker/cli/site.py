"""`stoker site`: synthetic web sites on this machine, to crawl."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from dataclasses import dataclass
from typing import Annotated, NoReturn, TypeVar

from stoker.cli.commands import COMMANDS
from stoker.cli.flags import parse
from stoker.cli.signals import end_on_sigterm
from stoker.config.written import COUNT
from stoker.envs.crawl.conduct import Conduct
from stoker.envs.crawl.launch import HOST, ServerProcesses
from stoker.envs.crawl.site import SiteSettings
from stoker.errors import ConfigError

Settings = TypeVar("Settings", SiteSettings, Conduct)


@dataclass(frozen=True, kw_only=True)
class ServeArguments:
    """Serve synthetic web sites on this machine, one for every seed: /s/1/, /s/2/ and so on.

    /stats has exact counts of what was asked for, /healthz says ok. Ctrl-C ends it.
    """

    port: int = 8000
    """Where to listen; 0 takes a free port."""
    host: str = HOST
    """This machine alone: any address but 127.0.0.1 is refused."""
    processes: int = 1
    """How many processes share the port."""
    latency: float = Conduct.latency
    """Seconds that an answer takes, on average without the tail."""
    jitter: float = Conduct.jitter
    """Answers take up to this share of the latency more or less."""
    tail: float = Conduct.tail
    """Share of answers that take far longer."""
    tail_multiple: float = Conduct.tail_multiple
    """How many times the latency those take, on average."""
    errors: float = Conduct.errors
    """Share of requests answered with status 500."""
    resets: float = Conduct.resets
    """Share of requests whose connection is dropped."""
    broken: float = Conduct.broken
    """Share of pages with broken HTML."""
    slow: float = Conduct.slow
    """Share of pages whose body trickles in."""
    slow_seconds: float = Conduct.slow_seconds
    """How long such a body takes."""
    seed: int = Conduct.seed
    """What delays and faults are drawn from. Sites have their seed in their address."""
    pages: Annotated[int, COUNT] = SiteSettings.pages
    """Real pages of a site; traps come on top."""
    targets: float = SiteSettings.targets
    """Share of pages that hold a target."""
    links: int = SiteSettings.links
    """Links in the text of a page, on average."""
    dead_ends: float = SiteSettings.dead_ends
    """Share of pages without any link."""
    traps: float = SiteSettings.traps
    """Share of pages that lead into a trap; 0 for a site without traps."""
    duplicates: float = SiteSettings.duplicates
    """Share of links that spell an address differently."""
    outside: float = SiteSettings.outside
    """Share of pages with a link that leaves the site."""


def site(arguments: list[str]) -> int:
    """`stoker site`: says what there is, or does it."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _overview()
        return 0
    name, *rest = arguments
    if name != "serve":
        close = difflib.get_close_matches(name, ["serve"], cutoff=0.5)
        hint = "Did you mean serve?" if close else "Known: serve."
        raise ConfigError(f"stoker site has no command {name!r}. {hint}")
    return _serve(parse(ServeArguments, rest, "site", prog="stoker site serve"))


def _overview() -> None:
    print("stoker site serves synthetic web sites on this machine, for agents to crawl.\n")
    print("  serve    a site for every seed, with latency and faults as you like them\n")
    for example in COMMANDS["site"].examples:
        print(f"  {example}")
    print("\n`stoker site serve --help` lists the flags.")


def _serve(given: ServeArguments) -> NoReturn:
    """Serves until a signal comes; the URL alone goes to standard output."""
    end_on_sigterm()
    with _server(given) as servers:
        print(servers.url, flush=True)
        print(f"A site for every seed, as {servers.url}s/1/. Ctrl-C ends it.", file=sys.stderr)
        servers.wait()


def _server(given: ServeArguments) -> ServerProcesses:
    """The processes to start; everything wrong with what was typed is told at once."""
    problems: list[str] = []
    site = _told(SiteSettings, given, problems, leaving_out="seed")
    conduct = _told(Conduct, given, problems)
    servers = None
    try:
        servers = ServerProcesses(
            site, conduct, host=given.host, port=given.port, processes=given.processes
        )
    except ConfigError as error:
        problems += error.problems
    if problems or servers is None:
        raise ConfigError(problems)
    return servers


def _told(
    kind: type[Settings], given: ServeArguments, problems: list[str], leaving_out: str = ""
) -> Settings | None:
    """The settings of that kind among the flags; None where they cannot work, with the reasons."""
    names = {field.name for field in dataclasses.fields(kind)} - {leaving_out}
    try:
        return kind(**{name: getattr(given, name) for name in names})
    except ConfigError as error:
        problems += error.problems
        return None
