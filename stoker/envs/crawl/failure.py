"""Why a page could not be fetched."""

from __future__ import annotations

from typing import Literal

from stoker.errors import EnvError

Kind = Literal[
    "url",
    "scheme",
    "refused-host",
    "private-address",
    "redirect",
    "circuit-open",
    "timeout",
    "connection",
    "tls",
    "protocol",
    "status",
    "encoding",
    "too-large",
]
"""`url`: not one that can be read in a single way, or with a user name in it. `scheme`: not http
or https. `refused-host`: not on the allow-list. `private-address`: the name leads to an address
inside of a network, which is not on the list. `redirect`: too many, in a circle, or to nowhere.
`circuit-open`: the host failed too often in a row, so nothing was sent. `protocol`: the answer is
not HTTP. `status`: 429 or 5xx. `encoding`: a content encoding that is unknown or broken."""

FAULTS_OF_THE_HOST: frozenset[Kind] = frozenset(
    ("timeout", "connection", "tls", "protocol", "status")
)
"""What counts towards the circuit breaker: nobody answered, or not well."""

ANSWERS: frozenset[Kind] = frozenset(("encoding", "too-large"))
"""What the host did answer, though we have no use for it: it is not out of order."""

_SHOWN = 200


class FetchError(EnvError):
    """A page could not be fetched. `kind` says why in a word, the message in a sentence."""

    def __init__(
        self,
        kind: Kind,
        url: str,
        sentence: str,
        transient: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(kind, url, sentence, transient, retry_after_s)
        self.kind = kind
        self.url = url
        self.sentence = sentence
        self.transient = transient
        """Whether the same request may well succeed a little later."""
        self.retry_after_s = retry_after_s
        """How long the host asked us to stay away, if it did."""

    def __str__(self) -> str:
        return f"{shown(self.url)} was not fetched ({self.kind}): {self.sentence}"


def shown(text: str) -> str:
    """Text from outside as it may stand in a message: on one line, and not endless."""
    printable = text.encode("unicode_escape").decode("ascii")
    return printable if len(printable) <= _SHOWN else printable[: _SHOWN - 3] + "..."
