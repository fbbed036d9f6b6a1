"""What episodes see and when they end, and what every tensor environment keeps to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from portfolios import bars_of, begin, play, replaced, rng_at
from torch import Tensor

from stoker.envs.trading.bars import Bars
from stoker.envs.trading.env import Trading
from stoker.envs.trading.market import synthetic_bars
from stoker.errors import ConfigError
from stoker.pools.draws import TensorRng
from stoker.types import TensorState, TensorStep

SMALL: dict[str, Any] = {"lookback": 3, "episode_bars": 5}
HALVED: dict[str, Any] = {**SMALL, "train_share": 0.5}


class Fixed:
    """Draws the same number every time."""

    def __init__(self, value: float) -> None:
        self._value = value

    def uniform(self, *tail: int) -> Tensor:
        return torch.full((1, *tail), self._value)

    normal = uniform


def counting(bars: int) -> Bars:
    """Bar t has a volume of 2 ** t, closes at e ** (t * t / 100) and has a range of t percent."""
    number = np.arange(bars, dtype=float)[:, None]
    close = np.exp(number**2 / 100)
    return Bars(("a",), number[:, 0], close, close, close / np.exp(number / 100), close, 2**number)


def closes_seen(seen: Tensor) -> list[int]:
    """The bars of a window over `counting`, told by their ranges."""
    return [round(value) for value in seen[0, 1:-2:3].tolist()]


@pytest.mark.parametrize(
    ("split", "drawn", "window"),
    [
        ("train", 0.0, [1, 2, 3]),
        ("train", 1 - 2**-24, [8, 9, 10]),
        ("test", 0.0, [17, 18, 19]),
        ("test", 1 - 2**-24, [17, 18, 19]),
    ],
)
def test_starts_keep_train_and_test_apart(split: Any, drawn: float, window: list[int]) -> None:
    """Of 25 bars, 16 are for training: 0 to 15. A window's first return needs one bar more."""
    env = Trading(counting(25), split=split, train_share=0.64, **SMALL)
    state = env.initial(1, Fixed(drawn))
    offset = 16 if split == "test" else 0
    assert state["bar"].item() + offset == window[-1]
    assert closes_seen(env.observe(state)) == window
    for _ in range(5):
        step = env.step(state, torch.zeros(1, 1), Fixed(0.0))
        state = step.state
    assert step.truncated.item()
    assert closes_seen(env.observe(state))[-1] <= (24 if split == "test" else 15)


def test_every_start_is_drawn() -> None:
    env = Trading(counting(25), train_share=0.64, **SMALL)
    assert set(begin(env, 200)["bar"].tolist()) == set(range(3, 11))


@pytest.mark.parametrize(("split", "changed"), [("test", slice(0, 16)), ("train", slice(16, 25))])
def test_the_other_part_does_not_matter(split: Any, changed: slice) -> None:
    bars, states = counting(25), []
    for data in (bars, shaken(bars, changed)):
        env = Trading(data, split=split, train_share=0.64, **SMALL)
        state = begin(env, 20)
        states.append([env.observe(state)])
        for number in range(1, 6):
            step = env.step(state, torch.ones(20, 1), rng_at(number, torch.arange(20)))
            state = step.state
            states[-1] += [env.observe(state), step.reward]
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)


def shaken(bars: Bars, which: slice) -> Bars:
    """Other prices and volumes in some bars."""
    columns = {}
    for column in ("open", "high", "low", "close", "volume"):
        columns[column] = getattr(bars, column).copy()
        columns[column][which] *= np.linspace(1.5, 3.0, len(bars))[which, None]
    return replaced(bars, **columns)


def test_nothing_after_a_bar_shows_in_what_is_seen_at_it() -> None:
    bars = synthetic_bars(3, 40, seed=5)
    env = Trading(bars, train_share=0.9, **SMALL)
    for at in range(3, 30):
        state = begin(env) | {"bar": torch.tensor([at])}
        seen = env.observe(state)
        after = Trading(shaken(bars, slice(at + 1, None)), train_share=0.9, **SMALL)
        assert torch.equal(after.observe(state), seen)
        now = Trading(shaken(bars, slice(at, at + 1)), train_share=0.9, **SMALL)
        assert not torch.equal(now.observe(state), seen)


def test_what_is_seen() -> None:
    env = Trading(counting(25), train_share=0.64, **SMALL)
    state = env.initial(1, Fixed(0.0)) | {"weights": torch.tensor([[-0.25]])}
    change = (2 - 1) / (2 + 1)
    window = [(t * t - (t - 1) ** 2, t, change) for t in (1, 2, 3)]
    expected = [*np.array(window).ravel(), -0.25, 1.25]
    assert env.observe(state)[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_unit_of_prices_and_volumes_does_not_matter() -> None:
    bars = synthetic_bars(2, 40)
    prices = {c: getattr(bars, c) * [8.0, 0.5] for c in ("open", "high", "low", "close")}
    scaled = replaced(bars, **prices, volume=bars.volume * 4)
    seen = [env.observe(begin(env, 9)) for env in (Trading(b, **HALVED) for b in (bars, scaled))]
    assert torch.allclose(*seen, atol=1e-5)


def test_no_volume_at_all_is_seen_as_no_change() -> None:
    flat = bars_of([[5.0]] * 20, [[5.0]] * 20, [[0.0]] * 20)
    env = Trading(flat, **HALVED, slippage=0.01, cost=0)
    assert env.observe(begin(env)).tolist() == [[0.0] * 10 + [1.0]]
    assert play(env, [[1.0]])[0].metrics["cost"].item() == pytest.approx(0.01)


def test_an_episode_is_cut_off_after_its_bars_and_not_before() -> None:
    env = Trading(assets=2, bars=60, **HALVED)
    steps = play(env, [[0.5, 0.5]] * 5)
    assert [step.truncated.item() for step in steps] == [False] * 4 + [True]
    assert not any(step.terminated.item() for step in steps)


def rolled(env: Trading, ids: Tensor, steps: int = 5) -> list[Tensor]:
    """All that comes of an episode for some environments, with actions that follow from the ids."""
    state = env.initial(len(ids), rng_at(0, ids))
    found = [env.observe(state)]
    for number in range(1, steps + 1):
        rng = rng_at(number, ids)
        step = env.step(state, rng.uniform(*env.action_space.shape) * 2 - 1, rng)
        state = step.state
        found += [env.observe(state), step.reward, *state.values(), *step.metrics.values()]
    return found


@pytest.mark.parametrize("assets", [1, 2, 5, 8, 19])
def test_a_row_is_the_same_in_any_batch(assets: int) -> None:
    env = Trading(assets=assets, bars=200, slippage=0.001, **SMALL)
    whole = rolled(env, torch.arange(37))
    for ids in (torch.tensor([30]), torch.tensor([36, 3, 17])):
        for some, all_ in zip(rolled(env, ids), whole, strict=True):
            assert torch.equal(some, all_[ids])


def test_shapes_and_types_are_kept_and_nothing_is_written_to() -> None:
    env = Trading(assets=3, bars=200, **SMALL)
    state = begin(env, 7)
    before = {name: value.clone() for name, value in state.items()}
    seen = env.observe(state)
    step = env.step(state, torch.rand(7, 3), rng_at(1, torch.arange(7)))
    assert seen.shape == (7, *env.observation_space.shape)
    assert seen.dtype == torch.float32
    assert env.observation_space.contains(seen[0].numpy())
    for name, value in step.state.items():
        assert (value.shape, value.dtype) == (before[name].shape, before[name].dtype)
        assert torch.equal(state[name], before[name])
    assert step.reward.shape == (7,)
    assert step.terminated.dtype == step.truncated.dtype == torch.bool
    assert tuple(step.metrics) == env.metric_names
    assert {value.dtype for value in (step.reward, *step.metrics.values())} == {torch.float32}


def test_nothing_depends_on_a_value_and_all_follows_the_device() -> None:
    """Tensors on `meta` have no values: whoever asks for one, or mixes devices, fails."""
    env = Trading(assets=3, bars=200, slippage=0.001, **SMALL)
    for found in rolled(env, torch.arange(4, device="meta")):
        assert found.device.type == "meta"
    assert begin(env)["bar"].device.type == "cpu"
    assert env.observe(begin(env)).isfinite().all()


def test_it_compiles_as_one_graph() -> None:
    env = Trading(assets=3, bars=200, slippage=0.001, **SMALL)

    def program(ids: Tensor, keys: Tensor, action: Tensor) -> tuple[Tensor, Tensor, TensorStep]:
        zero = torch.zeros((), dtype=torch.int64)
        state: TensorState = env.initial(len(ids), TensorRng(keys, ids, zero))
        step = env.step(state, action, TensorRng(keys, ids, zero + 1))
        return env.observe(state), env.observe(step.state), step

    given = torch.arange(6), torch.arange(6) * 77 + 1, torch.rand(6, 3)
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    first, second, step = compiled(*given)
    plain_first, plain_second, plain = program(*given)
    assert torch.equal(first, plain_first)
    assert torch.equal(second, plain_second)
    assert torch.equal(step.reward, plain.reward)
    assert all(torch.equal(step.state[name], plain.state[name]) for name in plain.state)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"split": "valid"}, "split is 'valid'; expected train or test"),
        ({"train_share": 1.0}, "train_share is 1.0; expected a number between 0 and 1"),
        ({"ruin": 0.0}, "ruin is 0.0; expected a number between 0 and 1"),
        ({"lookback": 0}, "lookback is 0; expected a whole number, 1 or more"),
        ({"episode_bars": 2.5}, "episode_bars is 2.5; expected a whole number, 1 or more"),
        ({"cost": -0.1}, "cost is -0.1; expected a share of what is traded, from 0 to 0.1"),
        ({"slippage": 5}, "slippage is 5; expected a share of what is traded, from 0 to 0.1"),
        ({"bars": 700}, "The test part has 140 of 700 bars; expected 145 or more"),
        ({"bars": 2, "split": "train"}, "The train part has 1 of 2 bars"),
        ({"assets": 0}, "assets is 0; expected a whole number, 1 or more"),
        ({"market_seed": -1}, "seed is -1; expected a whole number, 0 or more"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Trading(**{"split": "test"} | options)


def test_all_options_are_judged_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        Trading(cost=1, ruin=2, lookback=-1)
    assert len(error.value.problems) == 3


def test_exactly_enough_bars_are_enough() -> None:
    assert set(begin(Trading(counting(18), train_share=0.5, **SMALL), 9)["bar"].tolist()) == {3}
    with pytest.raises(ConfigError, match="expected 9 or more"):
        Trading(counting(17), train_share=0.5, **SMALL)
