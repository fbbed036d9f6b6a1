"""The search: predict all, measure the few that promise most, and those that remain for longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from stoker.errors import StokerError

Score = Callable[[int, float], float]
"""Measures a candidate, by its number, for so many seconds: steps a second, or what else counts."""

_HOPE = 1.25
"""How much better than its prediction a candidate may turn out."""
SECONDS = (1.0, 2.0, 4.0)
"""For which a candidate is measured at first, then half of those that were, then the last."""
_MOST_FIRST = 8
_LAST = (4, 2)  # candidates that are measured for longer


class Trial(NamedTuple):
    """A candidate that was measured."""

    number: int
    predicted: float
    measured: float


@dataclass
class Search:
    """What is known of candidates, by number; 0 is the job as it is. `kinds` says who are alike."""

    predictions: Sequence[float]
    kinds: Sequence[Hashable]
    measured: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """By number: how long each time, and what was found."""
    failed: dict[int, str] = field(default_factory=dict)
    pruned: int = 0

    def run(self, score: Score, tell: Callable[[Trial], Any] = lambda _: None) -> None:
        """Measure; whoever interrupts it finds the best so far."""
        for number in [0, *self._first_of_each_kind()]:
            if number not in self.measured:
                self._measure(number, score, SECONDS[0], tell)
        while len(self.measured) + len(self.failed) < _MOST_FIRST:
            promising = self._most_promising()
            if promising is None:
                break
            self._measure(promising, score, SECONDS[0], tell)
        for count, seconds in zip(_LAST, SECONDS[1:], strict=True):
            for trial in self.ranked()[:count]:
                self._measure(trial.number, score, seconds, tell)

    def ranked(self) -> list[Trial]:
        """What was measured, best first."""
        trials = [Trial(n, self.predictions[n], self._score(n)) for n in self.measured]
        return sorted(trials, key=lambda trial: -trial.measured)

    def _score(self, number: int) -> float:
        """The mean of all times, each by how long it was."""
        times = self.measured[number]
        return sum(took * found for took, found in times) / sum(took for took, _ in times)

    def _first_of_each_kind(self) -> list[int]:
        best: dict[Hashable, int] = {}
        for number, kind in enumerate(self.kinds):
            if kind not in best or self.predictions[number] > self.predictions[best[kind]]:
                best[kind] = number
        promising = sorted(best.values(), key=lambda number: -self.predictions[number])
        return promising[: _MOST_FIRST // 2]

    def _most_promising(self) -> int | None:
        """By what predictions of its kind have been worth; None if no other can be the best."""
        worth = self._worth()
        usual = fmean(worth.values()) if worth else 1.0
        left = [n for n in range(len(self.kinds)) if n not in self.measured | self.failed]
        hopes = {n: self.predictions[n] * worth.get(self.kinds[n], usual) for n in left}
        best = max((trial.measured for trial in self.ranked()), default=0.0)
        hopeful = [n for n in left if hopes[n] * _HOPE >= best]
        self.pruned = len(left) - len(hopeful)
        return max(hopeful, key=lambda n: hopes[n], default=None)

    def _worth(self) -> dict[Hashable, float]:
        """By kind, what was measured over what was predicted."""
        ratios: defaultdict[Hashable, list[float]] = defaultdict(list)
        for trial in self.ranked():
            ratios[self.kinds[trial.number]].append(trial.measured / trial.predicted)
        return {kind: fmean(found) for kind, found in ratios.items()}

    def _measure(
        self, number: int, score: Score, seconds: float, tell: Callable[[Trial], Any]
    ) -> None:
        try:
            found = score(number, seconds)
        except StokerError as error:  # too little memory, say: then it is none
            self.failed[number] = str(error)
            return
        self.measured.setdefault(number, []).append((seconds, found))
        tell(Trial(number, self.predictions[number], self._score(number)))
