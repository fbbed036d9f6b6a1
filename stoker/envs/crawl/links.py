"""The links of a page: navigation, breadcrumbs, the text's own, and those that lead astray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from stoker.envs.crawl.draws import Draws
from stoker.envs.crawl.layout import Node, SiteSettings
from stoker.envs.crawl.traps import Trap, entrances, onward
from stoker.envs.crawl.words import FILLER, TOPICS, VAGUE

LinkKind = Literal["navigation", "breadcrumb", "content", "trap", "outside", "private", "mail"]
"""`outside` and `private` leave the site, and a safe client refuses them; `mail` is no page."""

IGNORED_PARAMETERS = frozenset({"ref", "sid", "view"})
"""Query parameters that no page depends on."""

_VAGUE_TEXTS = 0.2
_WRONG_TEXTS = 0.15
_RELATIVE = 0.3
_NOFOLLOW_TRAPS = 0.3
_NOFOLLOW_CROSS = 0.04


class Link(NamedTuple):
    """A link as it stands on a page."""

    href: str
    """As written: absolute, relative, or with a scheme."""
    text: str
    kind: LinkKind
    path: str | None = None
    """Canonical path and query, without the site's prefix; None where it leads to no page."""
    nofollow: bool = False
    note: str = ""
    """A few words beside the link."""


def canonical(path_and_query: str) -> str:
    """The one spelling of an address: no fragment, no ignored parameter, the rest in order."""
    address = path_and_query.partition("#")[0]
    path, _, query = address.partition("?")
    if not query:
        return path
    parameters = sorted(
        pair for pair in query.split("&") if pair.partition("=")[0] not in IGNORED_PARAMETERS
    )
    return f"{path}?{'&'.join(parameters)}" if parameters else path


class Linker:
    """Writes the links of every page of one site; each page has a stream of draws of its own."""

    def __init__(self, settings: SiteSettings, nodes: list[Node], prefix: str) -> None:
        self._settings = settings
        self._nodes = nodes
        self._prefix = prefix
        self._by_topic: list[list[int]] = [[] for _ in TOPICS]
        self._by_section: list[list[int]] = [[] for _ in range(settings.sections + 1)]
        for index, node in enumerate(nodes):
            if index:
                self._by_topic[node.topic].append(index)
                self._by_section[node.section].append(index)
        self._navigation = tuple(
            Link(prefix + node.path, node.title, "navigation", node.path)
            for node in nodes[: settings.sections + 1]
        )

    def of_page(self, index: int) -> tuple[Link, ...]:
        """Every link of a real page, in the order of the page; none on a dead end."""
        node = self._nodes[index]
        if node.dead_end:
            return ()
        draws = Draws(self._settings.seed, 2, index)
        return (
            *self._navigation,
            *self._breadcrumbs(node),
            *(self._content(node, other, draws) for other in self._linked(index, draws)),
            *self._astray(node, draws),
        )

    def of_trap(self, trap: Trap) -> tuple[Link, ...]:
        """Every link of a trap: back to the sections, and on without end."""
        on = (self._into(path, text) for path, text in onward(trap, self._settings.seed))
        return (*self._navigation, *on)

    def neighbours(self, index: int) -> list[int]:
        """The real pages that a page links to in its text."""
        if self._nodes[index].dead_end:
            return []
        return self._linked(index, Draws(self._settings.seed, 2, index))

    def _linked(self, index: int, draws: Draws) -> list[int]:
        """Its children, and other pages no more than a level deeper: of its section, of its topic,
        of anywhere."""
        node = self._nodes[index]
        deepest = max(2, node.depth + 1)
        chosen = dict.fromkeys(node.children)
        wanted = self._settings.links // 2 + draws.below(self._settings.links + 1)
        for _ in range(3 * max(0, wanted - len(chosen))):
            fate = draws.uniform()
            if fate < 0.4 and index:
                other = draws.pick(self._by_section[node.section])
            elif fate < 0.7 and self._by_topic[node.topic]:
                other = draws.pick(self._by_topic[node.topic])
            else:
                other = draws.below(len(self._nodes))
            if other != index and self._nodes[other].depth <= deepest:
                chosen[other] = None
            if len(chosen) >= wanted:
                break
        return draws.shuffled(list(chosen))

    def _content(self, node: Node, index: int, draws: Draws) -> Link:
        other = self._nodes[index]
        fate = draws.uniform()
        if fate < _VAGUE_TEXTS:
            text = draws.pick(VAGUE)
        else:
            known = fate >= _VAGUE_TEXTS + _WRONG_TEXTS
            topic = TOPICS[other.topic] if known else draws.pick(TOPICS)
            text = f"{draws.pick(FILLER)} {draws.pick(topic.words)}"
        note = " ".join(draws.pick_some(FILLER, 3))
        if draws.chance(0.3):
            note = f"{note} {draws.pick(TOPICS[other.topic].words)}"
        relative = draws.chance(_RELATIVE)
        href = _relative(node.path, other.path) if relative else self._prefix + other.path
        if draws.chance(self._settings.duplicates):
            href += _decoration(draws)
        nofollow = index not in node.children and draws.chance(_NOFOLLOW_CROSS)
        return Link(href, text, "content", other.path, nofollow, note)

    def _breadcrumbs(self, node: Node) -> Iterator[Link]:
        if node.depth < 2:
            return
        section = self._nodes[node.section]
        yield Link(f"{self._prefix}/", "Home", "breadcrumb", "/")
        yield Link(self._prefix + section.path, section.title, "breadcrumb", section.path)
        above = node.path.rpartition("/")[0]
        if above != section.path:
            yield Link(self._prefix + above, "Up", "breadcrumb", above)

    def _astray(self, node: Node, draws: Draws) -> Iterator[Link]:
        settings = self._settings
        topic = TOPICS[node.topic]
        likelier = 0.5 if topic.is_rich else 2.0 if topic.is_poor else 1.0
        if settings.traps and (node.depth == 0 or draws.chance(likelier * settings.traps)):
            for path, text in entrances(settings.seed, draws):
                yield self._into(path, text, draws.chance(_NOFOLLOW_TRAPS))
        if draws.chance(settings.outside):
            yield Link(f"http://example.invalid/{draws.pick(FILLER)}", "elsewhere", "outside")
        if draws.chance(settings.outside):
            host = draws.pick(("10.0.0.1", "192.168.0.1", "169.254.169.254"))
            yield Link(f"http://{host}/{draws.pick(FILLER)}", "internal", "private")
        if draws.chance(settings.outside):
            yield Link(f"mailto:{draws.pick(FILLER)}@example.invalid", "write to us", "mail")

    def _into(self, path: str, text: str, nofollow: bool = False) -> Link:
        return Link(self._prefix + path, text, "trap", canonical(path), nofollow)


def _decoration(draws: Draws) -> str:
    """What makes an address look new and changes nothing."""
    kind = draws.below(4)
    if kind == 0:
        return f"#part-{1 + draws.below(4)}"
    if kind == 1:
        return f"?sid={draws.word():012x}"
    ref, view = f"ref={draws.pick(FILLER)}", f"view={draws.pick(('list', 'grid'))}"
    return f"?{ref}&{view}" if kind == 2 else f"?{view}&{ref}"


def _relative(source: str, target: str) -> str:
    """`target` as seen from the page `source`, both being absolute paths."""
    here, there = source.split("/")[1:-1], target.split("/")[1:]
    shared = 0
    while shared < min(len(here), len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    return "../" * (len(here) - shared) + "/".join(there[shared:]) or "./"
