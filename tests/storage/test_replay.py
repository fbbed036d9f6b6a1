"""The replay against a plain list of rows an environment, walked from row to row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.storage.replay import Replay
from stoker.train import snapshot
from stoker.train.sizes import replay_size
from stoker.types import PLAIN, ActionSpec, EnvSpec, Finals, LeafSpec, Rollout

CPU, GAMMA = torch.device("cpu"), 0.5
SPEC = EnvSpec(
    "made up",
    {PLAIN: LeafSpec("vector", (2,), "float32")},
    ActionSpec("discrete", (), "int64", nvec=(3,), start=(0,)),
    has_mask=True,
)
STEP, ENDS, TRUNCATED, CUT, GAP = range(5)
"""What may become of a step; the last two are not valid."""


@dataclass
class Row:
    """One written row, as the reference keeps it."""

    seen: int
    reward: float = 0.0
    is_step: bool = True
    ends: bool = False


class Reference:
    """Lists instead of rings: everything ever written, and how much of it is left."""

    def __init__(self, length: int, n_envs: int, ahead: int) -> None:
        self.length, self.ahead = length, ahead
        self.rows: list[list[Row]] = [[] for _ in range(n_envs)]

    def append(self, env: int, seen: int, reward: float, fate: int, final: int) -> None:
        rows = self.rows[env]
        if fate == CUT:
            rows.append(Row(seen, is_step=False))
        elif fate != GAP:
            rows.append(Row(seen, reward, ends=fate == ENDS))
        if fate == TRUNCATED:
            rows.append(Row(final, is_step=False))

    def outcomes(self) -> dict[int, tuple[float, float, int | None]]:
        """By what was seen: the sum of rewards, the discount, and what was seen then."""
        found = {}
        for rows in self.rows:
            for first in range(max(0, len(rows) - self.length), len(rows)):
                outcome = self._outcome(rows, first)
                if outcome is not None:
                    found[rows[first].seen] = outcome
        return found

    def _outcome(self, rows: list[Row], first: int) -> tuple[float, float, int | None] | None:
        if not rows[first].is_step:
            return None
        total = 0.0
        for k in range(self.ahead):
            if first + k == len(rows):
                return None
            row = rows[first + k]
            if not row.is_step:
                return total, GAMMA**k, row.seen
            total += GAMMA**k * row.reward
            if row.ends:
                return total, 0.0, None
        last = first + self.ahead
        return None if last >= len(rows) else (total, GAMMA**self.ahead, rows[last].seen)


def rollout_of(seen: np.ndarray, reward: np.ndarray, fate: np.ndarray) -> tuple[Rollout, Finals]:
    """Steps [T, N], told apart by the number of what was seen; a final one has its negative."""
    numbers = torch.from_numpy(seen)
    kinds = torch.from_numpy(fate)
    obs = torch.stack((numbers, numbers), -1).float()
    fields: dict[str, Any] = dict.fromkeys(Rollout._fields)
    fields |= {
        "obs": {PLAIN: obs},
        "action": (numbers % 3)[..., None],
        "action_mask": torch.stack((numbers % 2 == 0, numbers % 3 == 0, numbers % 5 == 0), -1),
        "reward": torch.from_numpy(reward).float(),
        "terminated": kinds == ENDS,
        "truncated": (kinds == TRUNCATED) | (kinds == CUT),
        "valid": kinds < CUT,
    }
    place = torch.nonzero(kinds.flatten() == TRUNCATED)[:, 0]
    return Rollout(**fields), Finals(place, {PLAIN: -obs.flatten(0, 1)[place]})


def held(replay: Replay) -> dict[int, tuple[float, float, int | None]]:
    """What may be sampled, as the reference has it; and that the other fields go with it."""
    row = replay.priorities.tree.levels[0].nonzero()[:, 0]
    drawn = replay.draw(row, torch.ones(len(row)))
    seen, then = drawn.obs[PLAIN].chunk(2)
    assert torch.equal(seen[:, 0], seen[:, 1])
    assert torch.equal(drawn.action[:, 0], seen[:, 0].long() % 3)
    assert drawn.next_mask is not None
    found: dict[int, tuple[float, float, int | None]] = {}
    for i, number in enumerate(seen[:, 0].long().tolist()):
        discount, after = float(drawn.discount[i]), int(then[i, 0])
        assert number not in found, "a row is there twice"
        found[number] = (float(drawn.reward[i]), discount, after if discount else None)
        if discount:
            allowed = [after % 2 == 0, after % 3 == 0, after % 5 == 0] if after > 0 else [True] * 3
            assert drawn.next_mask[i].tolist() == allowed
    return found


fates = st.sampled_from([STEP, STEP, STEP, ENDS, TRUNCATED, CUT, GAP])


@settings(max_examples=60)
@given(
    data=st.data(),
    n_envs=st.integers(1, 3),
    steps=st.integers(1, 4),
    ahead=st.integers(1, 4),
    spare=st.integers(0, 6),
    chunks=st.integers(1, 12),
)
def test_it_holds_what_a_list_of_rows_would(
    data: st.DataObject, n_envs: int, steps: int, ahead: int, spare: int, chunks: int
) -> None:
    """Whatever ends, is truncated, cut off or left out, and however often the ring goes round."""
    length = 2 * steps + ahead + 1 + spare
    replay = Replay(SPEC, length * n_envs, n_envs, ahead, GAMMA, 0.6, CPU)
    reference = Reference(length, n_envs, ahead)
    count = 0
    for _ in range(chunks):
        seen = np.arange(count + 1, count + 1 + steps * n_envs).reshape(steps, n_envs)
        count += steps * n_envs
        fate = np.array(data.draw(st.lists(fates, min_size=seen.size, max_size=seen.size)))
        fate = fate.reshape(seen.shape)
        reward = (seen % 7).astype(np.float64)
        for t in range(steps):
            for env in range(n_envs):
                number = int(seen[t, env])
                reference.append(env, number, float(reward[t, env]), int(fate[t, env]), -number)
        replay.append(*rollout_of(seen, reward, fate))
        if data.draw(st.booleans()):
            env = data.draw(st.integers(0, n_envs - 1))
            replay.break_off(torch.tensor([env]))
            rows = reference.rows[env]
            if rows and rows[-1].is_step and not rows[-1].ends:
                rows[-1] = Row(rows[-1].seen, is_step=False)
        assert held(replay) == reference.outcomes()


def steps_of(fate: list[int], first: int = 1) -> tuple[Rollout, Finals]:
    """One environment's, with a reward of 1 each."""
    seen = np.arange(first, first + len(fate))[:, None]
    return rollout_of(seen, np.ones(seen.shape), np.array(fate)[:, None])


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        # 1, 2, 3 steps are seen; the last waits for what follows.
        ([STEP, STEP, STEP], {1: (1.5, 0.25, 3)}),
        ([STEP, ENDS, STEP], {1: (1.5, 0.0, None), 2: (1.0, 0.0, None)}),
        ([STEP, TRUNCATED, STEP], {1: (1.5, 0.25, -2), 2: (1.0, 0.5, -2)}),
        ([STEP, CUT, STEP], {1: (1.0, 0.5, 2)}),
        ([STEP, GAP, STEP, STEP], {1: (1.5, 0.25, 4)}),
    ],
)
def test_sums_stop_where_episodes_do(fate: list[int], expected: dict[int, Any]) -> None:
    replay = Replay(SPEC, 20, 1, 2, GAMMA, 0.6, CPU)
    replay.append(*steps_of(fate))
    assert held(replay) == expected


def test_a_row_that_was_sampled_keeps_its_priority_when_more_is_appended() -> None:
    replay = Replay(SPEC, 40, 1, 2, GAMMA, 1.0, CPU)
    replay.append(*steps_of([STEP, ENDS]))
    weights = replay.priorities.tree.levels[0]
    replay.priorities.update(torch.tensor([0, 1]), torch.tensor([3.0, 0.25]), torch.tensor(True))
    replay.append(*steps_of([STEP, STEP, STEP], first=3))
    assert weights[:5].tolist() == pytest.approx([3, 0.25, 3, 0, 0], abs=1e-5)


def test_it_goes_on_from_its_state() -> None:
    rng = np.random.default_rng(0)

    def chunk(number: int) -> tuple[Rollout, Finals]:
        seen = np.arange(number * 8 + 1, number * 8 + 9).reshape(4, 2)
        return rollout_of(seen, rng.random((4, 2)), rng.integers(0, 5, (4, 2)))

    chunks = [chunk(number) for number in range(12)]
    whole, half = (Replay(SPEC, 60, 2, 3, GAMMA, 0.6, CPU) for _ in range(2))
    for number, some in enumerate(chunks):
        whole.append(*some)
        half.append(*some)
        if number % 5 == 1:
            state = {name: value.clone() for name, value in snapshot.state_of(half).items()}
            seen = [
                {"first": torch.tensor(first), f"obs.{PLAIN}": rows.clone()}
                for first, rows in zip((0, 21), half.obs[PLAIN][:-1].split([21, 39]), strict=True)
            ]
            half = Replay(SPEC, 60, 2, 3, GAMMA, 0.6, CPU)
            snapshot.restore(half, state, seen)
    assert held(whole) == held(half)
    pairs = zip(whole.priorities.tree.levels, half.priorities.tree.levels, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 1), (31, 33, 1), (3, 167, 2)])
def test_rows_of_every_size_are_drawn_as_they_are(shape: tuple[int, ...]) -> None:
    """Large ones are copied in wider elements, as wide as divide them: 16 bytes, 1, 2."""
    action = ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,))
    spec = EnvSpec("pictures", {PLAIN: LeafSpec("image", shape, "uint8")}, action)
    replay = Replay(spec, 12, 2, 1, 0.99, 0.6, torch.device("cpu"))
    replay.obs[PLAIN].random_(256, generator=torch.Generator().manual_seed(0))
    replay.outcome[:, 2] = 1.0
    row = torch.tensor([3, 0, 11, 3])
    seen = replay.draw(row, torch.ones(4)).obs[PLAIN]
    assert torch.equal(seen, replay.obs[PLAIN][torch.cat((row, (row + 2) % 12))])


def test_images_stay_bytes_and_the_estimate_is_what_is_taken() -> None:
    leaf = LeafSpec("image", (8, 8, 1), "uint8")
    spec = EnvSpec("made up", {PLAIN: leaf}, SPEC.action)
    replay = Replay(spec, 1000, 2, 1, GAMMA, 0.6, CPU)
    assert replay.obs[PLAIN].dtype == torch.uint8
    seen, rest = replay_size(spec, 1000)
    held = [value for name, value in snapshot._held(replay).items() if name != "priority"]
    held.append(replay.obs[PLAIN])
    tree = replay.priorities.tree.levels
    taken = sum(value.numel() * value.element_size() for value in [*held, *tree])
    assert seen == 64_000
    assert taken == pytest.approx(seen + rest, rel=0.05)
