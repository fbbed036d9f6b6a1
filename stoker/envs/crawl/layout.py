"""How the real pages of a site are laid out: sections, trees, topics, targets and dead ends."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from stoker.envs.crawl.draws import Draws
from stoker.envs.crawl.words import PLAIN, POOR, RICH, TOPICS
from stoker.errors import ConfigError

MAX_CHILDREN = 8
MAX_DEPTH = 8

_KEPT_FROM_PARENT = 0.5
_KEPT_FROM_SECTION = 0.15
_OPAQUE_NAMES = 0.2
"""Share of pages whose address says nothing of their topic."""

_BY_DEPTH = (0, 0, 3, 10, 13)
"""How likely a target is by depth; the last holds for all below."""


def _within(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """What a site is like. Equal settings give equal bytes, on every machine."""

    seed: int = _within(0, 0, 2**63 - 1)
    """How the site is arranged; what words mean is the same for all seeds."""
    pages: int = _within(400, 20, 100_000)
    """Real pages, the home page among them. Traps come on top and have no end."""
    targets: float = _within(0.1, 0.0, 0.3)
    """Share of real pages that hold a target."""
    links: int = _within(12, 2, 40)
    """Links in the text of a page, on average; navigation comes on top."""
    dead_ends: float = _within(0.1, 0.0, 0.3)
    """Share of real pages without any link."""
    traps: float = _within(0.15, 0.0, 1.0)
    """Share of real pages that lead into a trap: a calendar without end, or tags upon tags."""
    duplicates: float = _within(0.15, 0.0, 1.0)
    """Share of links in texts that spell an address differently: a session, a fragment, parameters
    in another order."""
    outside: float = _within(0.1, 0.0, 1.0)
    """Share of pages with a link that leaves the site; as many have one to a private address, and
    as many one to a mailbox."""

    def __post_init__(self) -> None:
        problems = []
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            low, high = setting.metadata["low"], setting.metadata["high"]
            whole = isinstance(low, int)
            kinds = int if whole else int | float
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not low <= value <= high:
                kind = "whole number" if whole else "number"
                problems.append(
                    f"{setting.name} is {value!r}; a site needs a {kind} from {low} to {high}."
                )
        if problems:
            raise ConfigError(problems)

    @property
    def sections(self) -> int:
        """How many sections the navigation lists."""
        return min(12, max(4, self.pages // 40))


class Node:
    """A real page: where it stands, and what it is about."""

    __slots__ = ("children", "dead_end", "depth", "path", "section", "target_id", "title", "topic")

    def __init__(self, topic: int, section: int, depth: int, path: str, title: str) -> None:
        self.topic = topic
        self.section = section
        """The index of the section's own page; 0 for the home page."""
        self.depth = depth
        self.path = path
        self.title = title
        self.children: tuple[int, ...] = ()  # most have none, and an empty list takes 56 bytes
        self.dead_end = False
        self.target_id: str | None = None


def lay_out(settings: SiteSettings) -> list[Node]:
    """Every real page: the home page first, then the sections, then what is in them.

    A page stands after its parent, and the tree alone reaches all of them from the home page.
    """
    draws = Draws(settings.seed, 1)
    nodes = [Node(draws.pick(PLAIN), 0, 0, "/", "Home")]
    for topic in _section_topics(settings.sections, draws):
        name = TOPICS[topic].name
        nodes[0].children += (len(nodes),)
        nodes.append(Node(topic, len(nodes), 1, f"/{name}", name.capitalize()))
    _grow(nodes, settings, draws)
    _mark_dead_ends(nodes, round(settings.dead_ends * settings.pages), draws)
    _place_targets(nodes, round(settings.targets * settings.pages), draws)
    return nodes


def _section_topics(count: int, draws: Draws) -> list[int]:
    """Different topics: a quarter that leads to targets, a quarter that leads nowhere."""
    quarter = max(1, count // 4)
    rich = draws.shuffled(RICH)[:quarter]
    poor = draws.shuffled(POOR)[:quarter]
    plain = draws.shuffled(PLAIN)[: count - 2 * quarter]
    return draws.shuffled(rich + poor + plain)


def _grow(nodes: list[Node], settings: SiteSettings, draws: Draws) -> None:
    """Hangs the remaining pages below the sections, of which some are larger than others."""
    sections = range(1, len(nodes))
    members = {section: [section] for section in sections}
    crowded = [section for section in sections for _ in range(1 + draws.below(3))]
    numbers = draws.shuffled(range(1000, 1000 + settings.pages))
    while len(nodes) < settings.pages:
        section = draws.pick(crowded)
        parent = _parent(nodes, members[section], draws)
        above = nodes[parent]
        fate = draws.uniform()
        if fate < _KEPT_FROM_PARENT:
            topic = above.topic
        elif fate < _KEPT_FROM_PARENT + _KEPT_FROM_SECTION:
            topic = nodes[section].topic
        else:
            topic = draws.below(len(TOPICS))
        words = TOPICS[topic].words
        title = f"{draws.pick(words)} {draws.pick(words)}"
        number = numbers[len(nodes)]
        opaque = draws.chance(_OPAQUE_NAMES)
        slug = f"item-{number}" if opaque else f"{title.replace(' ', '-')}-{number}"
        above.children += (len(nodes),)
        members[section].append(len(nodes))
        path = f"{above.path}/{slug}"
        nodes.append(Node(topic, section, above.depth + 1, path, f"{title.capitalize()} {number}"))


def _parent(nodes: list[Node], members: list[int], draws: Draws) -> int:
    for _ in range(16):
        parent = draws.pick(members)
        node = nodes[parent]
        if len(node.children) < MAX_CHILDREN and node.depth < MAX_DEPTH:
            return parent
    return members[0]


def _mark_dead_ends(nodes: list[Node], count: int, draws: Draws) -> None:
    weights = [0 if node.children or node.depth < 2 else _dead_end_weight(node) for node in nodes]
    for index in _weighted(weights, count, draws):
        nodes[index].dead_end = True


def _dead_end_weight(node: Node) -> int:
    topic = TOPICS[node.topic]
    return 1 if topic.is_rich else 8 if topic.is_poor else 3


def _place_targets(nodes: list[Node], count: int, draws: Draws) -> None:
    weights = [_target_weight(node, nodes[node.section]) for node in nodes]
    for index in _weighted(weights, count, draws):
        nodes[index].target_id = f"t{draws.word():016x}"


def _target_weight(node: Node, section: Node) -> int:
    pull = TOPICS[node.topic].pull
    by_topic = (
        120 if pull >= 1 else 80 if pull >= 0.8 else 15 if pull > 0 else 4 if pull == 0 else 1
    )
    around = TOPICS[section.topic]
    by_section = 4 if around.is_rich else 1 if around.is_poor else 2
    by_depth = _BY_DEPTH[min(node.depth, len(_BY_DEPTH) - 1)]
    return by_topic * by_section * by_depth // (2 if node.dead_end else 1)


def _weighted(weights: list[int], count: int, draws: Draws) -> list[int]:
    """So many different indices, a heavier one likelier; fewer where not so many weigh anything.

    By rejection, on whole numbers: sums of floats would differ between machines. What is left
    after so many tries that only light ones can remain is taken in order.
    """
    able = [index for index, weight in enumerate(weights) if weight]
    heaviest = max(weights)
    chosen: dict[int, None] = {}
    for _ in range(40 * len(able)):
        if len(chosen) >= count:
            break
        index = draws.pick(able)
        if index not in chosen and draws.below(heaviest) < weights[index]:
            chosen[index] = None
    for index in able:
        if len(chosen) >= count:
            break
        chosen[index] = None
    return list(chosen)
