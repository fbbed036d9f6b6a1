"""How a server of sites behaves: how long answers take, and which of them go wrong.

What happens to a request follows from the seeds, its address and how often that address was asked
for, so a run that asks for the same things meets the same faults.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from stoker.envs.crawl.draws import Draws, number_of
from stoker.errors import ConfigError

Fault = Literal["error", "reset", "broken", "slow"]

_LONGEST_TAIL = 10.0
"""A slow answer takes at most so many times what slow answers take on average."""


class Fate(NamedTuple):
    """What happens to one request."""

    delay: float
    """Seconds until it is answered."""
    fault: Fault | None


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How a server behaves. By default it answers at once, and rightly."""

    seed: int = 0
    """What delays and faults are drawn from, besides the site, the address and the count."""
    latency: float = 0.0
    """Seconds that an answer takes, on average without the tail."""
    jitter: float = 0.25
    """Answers take up to this share of the latency more or less."""
    tail: float = 0.0
    """Share of answers that take far longer."""
    tail_multiple: float = 10.0
    """How many times the latency those take on average; they follow Pareto's law, exponent 2."""
    errors: float = 0.0
    """Share of requests answered with status 500."""
    resets: float = 0.0
    """Share of requests whose connection is dropped without an answer."""
    broken: float = 0.0
    """Share of pages with broken HTML."""
    slow: float = 0.0
    """Share of pages whose body trickles in."""
    slow_seconds: float = 2.0
    """How long such a body takes."""

    def __post_init__(self) -> None:
        problems = [*self._wrong_numbers()]
        rates = ("errors", "resets", "broken", "slow")
        if not problems and math.fsum(getattr(self, rate) for rate in rates) > 1:
            told = " + ".join(f"{rate} {getattr(self, rate):g}" for rate in rates)
            problems.append(f"{told} is more than 1; a request has one fault at most.")
        if problems:
            raise ConfigError(problems)

    def _wrong_numbers(self) -> list[str]:
        problems = []
        for setting in dataclasses.fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if name == "seed":
                if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                    problems.append(f"seed is {value!r}; it must be a whole number from 0 on.")
                continue
            low, high = _BOUNDS.get(name, (0.0, 1.0))
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                problems.append(f"{name} is {value!r}; it must be from {low:g} to {high:g}.")
        return problems

    @property
    def is_calm(self) -> bool:
        """Whether every request is answered at once, and rightly."""
        return not (self.latency or self.errors or self.resets or self.broken or self.slow)

    def fate(self, site_seed: int, address: str, count: int) -> Fate:
        """What happens to the request for an address that was asked for `count` times before."""
        draws = _draws(self.seed, site_seed, address).then(count)
        return Fate(self._delay(draws), self._fault(draws) if self._rates else None)

    def _delay(self, draws: Draws) -> float:
        in_tail, amount = draws.chance(self.tail), draws.uniform()
        if not in_tail:
            return self.latency * (1 + self.jitter * (2 * amount - 1))
        length = min(0.5 / math.sqrt(1 - amount), _LONGEST_TAIL)
        return self.latency * self.tail_multiple * length

    @cached_property
    def _rates(self) -> tuple[tuple[Fault, float], ...]:
        """The faults that there are, and how often."""
        kinds: tuple[tuple[Fault, float], ...] = (
            ("error", self.errors),
            ("reset", self.resets),
            ("broken", self.broken),
            ("slow", self.slow),
        )
        return tuple((fault, rate) for fault, rate in kinds if rate)

    def _fault(self, draws: Draws) -> Fault | None:
        drawn = draws.uniform()
        for fault, rate in self._rates:
            if drawn < rate:
                return fault
            drawn -= rate
        return None


@lru_cache(maxsize=1 << 16)  # to hash an address takes longer than all that is drawn for it
def _draws(seed: int, site_seed: int, address: str) -> Draws:
    return Draws(seed, site_seed, number_of(address))


_BOUNDS = {"latency": (0.0, 60.0), "tail_multiple": (1.0, 1000.0), "slow_seconds": (0.0, 600.0)}
"""Of the settings that are no shares."""
