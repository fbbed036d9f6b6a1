"""The vocabulary of all sites: what a word says of where it leads is the same for every seed.

Only the arrangement is seeded, so what an agent learns of words on some sites holds on others.
"""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """What a page is about."""

    words: tuple[str, ...]
    """In addresses, link texts and pages; the first one is the topic's name. No other topic has
    any of them."""
    pull: float
    """How strongly it leads to targets: 1 most often, 0 as often as not, below 0 to traps and
    dead ends."""

    @property
    def name(self) -> str:
        """The first of its words."""
        return self.words[0]

    @property
    def is_rich(self) -> bool:
        """Whether targets gather here."""
        return self.pull >= 0.8

    @property
    def is_poor(self) -> bool:
        """Whether traps and dead ends gather here."""
        return self.pull < 0


TOPICS = (
    Topic(("report", "annual", "findings", "summary"), 1.0),
    Topic(("dataset", "table", "measurements", "download"), 1.0),
    Topic(("appendix", "annex", "supplement", "figures"), 1.0),
    Topic(("survey", "questionnaire", "respondents", "census"), 0.8),
    Topic(("statistics", "indicators", "estimates", "quarterly"), 0.8),
    Topic(("archive", "records", "collection", "volume"), 0.4),
    Topic(("research", "study", "methods", "laboratory"), 0.4),
    Topic(("library", "catalogue", "index", "shelf"), 0.4),
    Topic(("news", "headline", "bulletin", "update"), 0.0),
    Topic(("team", "people", "staff", "careers"), 0.0),
    Topic(("products", "models", "range", "features"), 0.0),
    Topic(("guide", "tutorial", "manual", "lesson"), 0.0),
    Topic(("history", "founders", "timeline", "origins"), 0.0),
    Topic(("gallery", "photos", "images", "exhibition"), 0.0),
    Topic(("partners", "sponsors", "network", "alliance"), 0.0),
    Topic(("services", "support", "consulting", "repairs"), 0.0),
    Topic(("forum", "thread", "reply", "comments"), -0.5),
    Topic(("terms", "privacy", "cookies", "legal"), -0.5),
    Topic(("share", "print", "bookmark", "email"), -0.7),
    Topic(("cart", "checkout", "wishlist", "voucher"), -0.7),
    Topic(("calendar", "month", "schedule", "agenda"), -1.0),
    Topic(("tag", "filter", "sort", "browse"), -1.0),
    Topic(("login", "password", "register", "account"), -1.0),
)
"""What pages are about, from what leads to targets down to what leads nowhere."""

RICH = tuple(n for n, topic in enumerate(TOPICS) if topic.is_rich)
POOR = tuple(n for n, topic in enumerate(TOPICS) if topic.is_poor)
PLAIN = tuple(n for n in range(len(TOPICS)) if n not in RICH + POOR)
CALENDAR, TAG = (
    next(n for n, topic in enumerate(TOPICS) if topic.name == name) for name in ("calendar", "tag")
)

PULL = {word: topic.pull for topic in TOPICS for word in topic.words}
"""By word, the pull of its topic."""

FILLER = (
    *("about", "after", "all", "along", "and", "area", "at", "before", "between", "both", "by"),
    *("case", "common", "early", "each", "every", "few", "first", "for", "form", "from", "full"),
    *("general", "given", "group", "here", "in", "into", "its", "known", "large", "last", "late"),
    *("local", "long", "main", "many", "more", "most", "near", "new", "next", "number", "of"),
    *("often", "on", "open", "order", "other", "our", "over", "part", "place", "point", "public"),
    *("same", "second", "short", "side", "since", "some", "still", "such", "than", "that", "the"),
    *("then", "these", "this", "through", "time", "under", "until", "use", "way", "well", "when"),
    *("where", "which", "while", "whole", "with", "within", "without", "work", "year", "yet"),
)
"""Words that say nothing."""

VAGUE = ("read more", "continue", "here", "next", "see also", "details", "open", "this page")
"""Link texts that say nothing."""
