"""Pages as HTML, whole or broken."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stoker.envs.crawl.draws import Draws
from stoker.envs.crawl.links import Link
from stoker.envs.crawl.words import FILLER, TOPICS

_TEXTS = tuple((*FILLER, *topic.words * 7) for topic in TOPICS)
"""By topic, what its text is drawn from: about a fifth of the words are its own."""

_CLOSING = re.compile(r"</(a|p|li|ul|div|nav|article|em|h1)>")
_QUOTED = re.compile(r'="([^" ?=&;]+)"')
_JUNK = ("<", "&", "&#x;", "<p>", "</div>", "</table>", "\x00", "\udcff\udcfe", "<b><i></b></i>")
"""Nothing that would swallow the tag after it. Lone surrogates become bytes that are not UTF-8."""


def render(
    *,
    title: str,
    topics: Sequence[int],
    links: Sequence[Link],
    address: str,
    target_id: str | None,
    draws: Draws,
) -> str:
    """The HTML of a page; every entry of `topics` gets a paragraph."""
    navigation = "\n".join(_anchor(link) for link in links if link.kind == "navigation")
    breadcrumbs = " &gt; ".join(_anchor(link) for link in links if link.kind == "breadcrumb")
    content = "\n".join(
        f"<li>{_anchor(link)} <em>{link.note}</em></li>" for link in links if link.kind == "content"
    )
    rest = " | ".join(
        _anchor(link) for link in links if link.kind not in ("navigation", "breadcrumb", "content")
    )
    opening = (
        f'<article class="target" data-id="{target_id}">' if target_id else '<article class="text">'
    )
    paragraphs = "\n".join(_paragraph(topic, draws) for topic in topics)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="canonical" href="{_escaped(address)}">
</head>
<body>
<nav>
{navigation}
</nav>
<div class="breadcrumbs">{breadcrumbs}</div>
<h1>{title}</h1>
{opening}
{paragraphs}
</article>
<ul>
{content}
</ul>
<footer><div>{rest}</div></footer>
</body>
</html>
"""


def broken(html: str, draws: Draws) -> str:
    """The same page as careless hands would leave it.

    Tags stay open or close in the wrong order, attributes lose their quotes, stray marks and bytes
    stand in the text, and the end is missing. A lenient reader still finds every
    link and the target.
    """

    def close(tag: re.Match[str]) -> str:
        fate = draws.uniform()
        if fate < 0.4:
            return ""
        return f"</em>{tag[0]}</li>" if fate < 0.5 else tag[0]

    def unquote(value: re.Match[str]) -> str:
        return f"={value[1]}" if draws.chance(0.3) else value[0]

    body = _CLOSING.sub(close, html.partition("</footer>")[0])
    lines = _QUOTED.sub(unquote, body).split("\n")
    for _ in range(6):
        lines.insert(8 + draws.below(len(lines) - 8), draws.pick(_JUNK))
    return "\n".join(lines)


def _anchor(link: Link) -> str:
    rel = ' rel="nofollow"' if link.nofollow else ""
    return f'<a href="{_escaped(link.href)}"{rel}>{link.text}</a>'


def _escaped(address: str) -> str:
    return address.replace("&", "&amp;") if "&" in address else address


def _paragraph(topic: int, draws: Draws) -> str:
    words = draws.pick_some(_TEXTS[topic], 36 + draws.below(28))
    return f"<p>{' '.join(words).capitalize()}.</p>"
