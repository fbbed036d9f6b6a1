"""Environments that raise or return what they may not: mended, counted; too many stop the run."""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from awaitable import AsCoroutines
from faulty_envs import (
    DTYPE,
    FAR,
    INFINITE,
    INFO,
    NAN,
    RAISE,
    RESET,
    SHAPE,
    WELL,
    Faulty,
    NeedsMain,
    NotANumber,
    Unsure,
    spec_of,
)

from stoker.config.schema import FaultSettings
from stoker.errors import BadValueError, EnvError
from stoker.pools.base import BasePool
from stoker.pools.inline import InlinePool
from stoker.pools.journal import JournalKeeper
from stoker.pools.process import ProcessPool
from stoker.pools.slot import episode_seed
from stoker.pools.worker import Waits
from stoker.runs import checkpoint as checkpoints

Run = Callable[..., subprocess.CompletedProcess[str]]
POOLS = pytest.mark.parametrize("kind", ["inline", "process", "in threads", "as coroutines"])


@contextmanager
def pool_of(kind: str, make_env: Any = Faulty, n: int = 4, **settings: Any) -> Iterator[BasePool]:
    faults = FaultSettings(**settings)
    if kind == "as coroutines":
        make_env = partial(AsCoroutines, make_env)
    waits: Any = kind if kind in get_args(Waits) else "no"
    with (
        InlinePool(make_env, spec_of(Faulty()), n, faults)
        if kind == "inline"
        else ProcessPool(make_env, spec_of(Faulty()), n, 2, faults, waits=waits)
    ) as pool:
        yield pool


def act(*choices: int) -> np.ndarray:
    return np.array(choices, np.int64)[:, None]


def first_obs(env_id: int, episode: int, seed: int = 3) -> list[float]:
    """What an environment shows at the beginning of an episode."""
    obs, _ = Faulty().reset(seed=episode_seed(seed, env_id, episode))
    return obs.tolist()


@POOLS
def test_an_environment_that_raises_is_replaced(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        with pytest.warns(UserWarning, match="reactor") as caught:
            batch = pool.step(act(WELL, WELL, RAISE, WELL))
        (message,) = [str(warning.message) for warning in caught]
        assert "Environment 2 raised RuntimeError in step(): the reactor is offline" in message
        assert f"reset(seed={episode_seed(3, 2, 0)}), action 1" in message
        assert "faulty_envs.py" in message
        assert batch.truncated.tolist() == [False, False, True, False]
        assert batch.valid.tolist() == [True, True, False, True]
        assert not batch.terminated.any()
        assert batch.reward.tolist() == [2, 2, 0, 2]
        assert batch.obs["obs"][2].tolist() == first_obs(2, episode=1)
        assert pool.step(act(WELL, WELL, WELL, WELL)).reward.tolist() == [3, 3, 1, 3]
        found = {kind: count for kind, count in pool.faults().items() if count}
        assert found == {"env_errors": 1}


@POOLS
def test_a_reset_that_raises_cuts_the_episode_off(kind: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=3)
        with pytest.warns(UserWarning, match=r"Environment 1 raised OSError in reset\(\): door"):
            batch = pool.step(act(WELL, RESET, WELL, WELL))
        assert (bool(batch.truncated[1]), bool(batch.valid[1])) == (True, False)
        assert not batch.terminated[1]
        assert batch.obs["obs"][1].tolist() == first_obs(1, episode=1)


@POOLS
def test_a_step_whose_outcome_is_unknown_is_no_fault(kind: str) -> None:
    with pool_of(kind, Unsure, max_faults=0) as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        with pytest.warns(UserWarning, match=r"cut off: the answer got lost\. Others"):
            batch = pool.step(act(WELL, RAISE, WELL, RAISE))
        assert batch.truncated.tolist() == [False, True, False, True]
        assert batch.valid.tolist() == [True, False, True, False]
        assert batch.reward.tolist() == [2, 0, 2, 0]
        assert batch.obs["obs"][1].tolist() == first_obs(1, episode=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert pool.step(act(RAISE, WELL, WELL, WELL)).reward.tolist() == [0, 1, 3, 1]
        assert {k: n for k, n in pool.faults().items() if n} == {"cut_episodes": 3}


@POOLS
def test_one_fault_too_many_is_raised(kind: str) -> None:
    with pool_of(kind, max_faults=2) as pool:
        pool.reset(seed=3)
        for actions in (act(RAISE, WELL, WELL, WELL), act(WELL, RAISE, WELL, WELL)):
            with pytest.warns(UserWarning, match="reactor"):
                pool.step(actions)
        with pytest.raises(EnvError, match="the reactor is offline") as caught:
            pool.step(act(WELL, WELL, RAISE, WELL))
        assert "fault number 3 within 300 s, and 2 are mended" in caught.value.__notes__[0]


def test_faults_that_lie_far_apart_are_not_too_many() -> None:
    with pool_of("inline", max_faults=1, fault_window=0.1) as pool:
        pool.reset(seed=3)
        for _ in range(4):
            with pytest.warns(UserWarning, match="reactor"):
                pool.step(act(RAISE, WELL, WELL, WELL))
            time.sleep(0.15)
        assert pool.faults()["env_errors"] == 4


@POOLS
def test_an_environment_that_cannot_be_made_again(kind: str, tmp_path: Path) -> None:
    def make() -> Faulty:
        made = len(list(tmp_path.iterdir()))
        (tmp_path / str(time.monotonic_ns())).touch()
        if made >= 4:
            raise OSError("out of licences")
        return Faulty()

    with pool_of(kind, make, max_faults=3) as pool:
        pool.reset(seed=3)
        with (
            pytest.warns(UserWarning, match="out of licences"),
            pytest.raises(EnvError, match=r"raised OSError in __init__\(\): out of licences"),
        ):
            pool.step(act(WELL, WELL, RAISE, WELL))


BAD = [
    (NAN, "obs that is not finite"),
    (INFINITE, "reward that is not finite"),
    (SHAPE, r"float32 with shape \(3,\); its space says float32 with shape \(2,\)"),
    (DTYPE, "as complex128 with shape"),
    (FAR, r"obs that is not within the bounds of its space, -1\. to 1000\."),
    (INFO, "an info that is str"),
]


@POOLS
@pytest.mark.parametrize(("fault", "said"), BAD)
def test_a_bad_value_stops_the_run(kind: str, fault: int, said: str) -> None:
    with pool_of(kind) as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        with pytest.raises(BadValueError, match=said) as caught:
            pool.step(act(WELL, WELL, WELL, fault))
        assert "Environment 3" in str(caught.value)
        assert f"reset(seed={episode_seed(3, 3, 0)}), action {fault}." in str(caught.value)


@POOLS
@pytest.mark.parametrize(
    ("spot", "episode", "action"),
    [("reward", 0, ", action 0"), ("last", 0, ", action 0"), ("first", 1, "")],
)
def test_a_bad_value_at_an_episodes_end_is_told_by_the_episode_it_is_of(
    kind: str, spot: str, episode: int, action: str
) -> None:
    with pool_of(kind, partial(NotANumber, spot)) as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        with pytest.raises(BadValueError, match="not finite") as caught:
            pool.step(act(WELL, WELL, WELL, WELL))
        assert f"reset(seed={episode_seed(3, 0, episode)}){action}." in str(caught.value)


@POOLS
def test_a_bad_value_of_a_reset_is_told_without_an_action(kind: str) -> None:
    class Blind(Faulty):
        def look(self) -> Any:
            return super().look() * np.nan

    with pool_of(kind, Blind) as pool, pytest.raises(BadValueError, match="finite") as caught:
        pool.reset(seed=3)
    assert str(caught.value).endswith(f"began with reset(seed={episode_seed(3, 0, 0)}).")


@POOLS
@pytest.mark.parametrize(("fault", "said"), BAD)
def test_a_bad_value_truncates_where_so_configured(kind: str, fault: int, said: str) -> None:
    with pool_of(kind, bad_values="truncate") as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        with pytest.warns(UserWarning, match=said):
            batch = pool.step(act(WELL, WELL, WELL, fault))
        assert batch.truncated.tolist() == [False, False, False, True]
        assert batch.valid.tolist() == [True, True, True, False]
        assert batch.obs["obs"][3].tolist() == first_obs(3, episode=1)
        assert pool.step(act(WELL, WELL, WELL, WELL)).reward.tolist() == [3, 3, 3, 1]
        assert pool.faults()["bad_values"] == 1


@POOLS
def test_bounds_need_not_be_checked(kind: str) -> None:
    with pool_of(kind, check_bounds=False) as pool:
        pool.reset(seed=3)
        assert pool.step(act(WELL, WELL, WELL, FAR)).obs["obs"][3, 1] == -2.0


@POOLS
def test_a_journal_kept_through_faults_brings_everyone_back(kind: str) -> None:
    """The pool and whoever counts its rows must agree on which episode is which."""
    rng, journal = np.random.default_rng(0), JournalKeeper(4, 1, dtype="int64")
    make = lambda: Faulty(length=5)  # noqa: E731
    with (
        pool_of(kind, make, max_faults=1000, bad_values="truncate") as pool,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        pool.reset(seed=3)
        for _ in range(60):
            actions = rng.choice([WELL, WELL, WELL, RAISE, NAN, SHAPE], size=(4, 1))
            batch = pool.step(actions)
            journal.take(actions, batch)
        assert pool.faults()["env_errors"] > 5
        assert pool.faults()["bad_values"] > 5
    with pool_of("inline", make) as other:
        again = other.reset(3, journal.journal())
        assert again.obs["obs"].tolist() == batch.obs["obs"].tolist()


# What cannot work from the start.


@POOLS
def test_spaces_that_differ_between_instances(kind: str, tmp_path: Path) -> None:
    from gymnasium import spaces

    def make() -> Faulty:
        env = Faulty()
        try:
            (tmp_path / "made").touch(exist_ok=False)  # by one, also where two are made at once
        except FileExistsError:
            env.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        return env

    with (
        pytest.raises(EnvError, match="has another observation space than the one that was tried"),
        pool_of(kind, make),
    ):
        pass


def test_an_environment_that_needs_the_script() -> None:
    with pool_of("process", NeedsMain) as pool, pytest.raises(EnvError) as caught:
        pool.reset(seed=3)
    assert "SETTINGS_OF_THE_SCRIPT" in str(caught.value)
    assert "which worker processes do not run. Pass it as an argument" in str(caught.value)


# Through the command.

# The one that is tried takes a thousand steps at most, so what comes later comes in training alone.
_TRAIN = "train --timesteps 4096 --n-envs 4 --n-steps 128 --device cpu --eval-episodes 0"


@pytest.mark.parametrize("kind", ["inline", "process", "io"])
def test_training_goes_on_past_an_environment_that_raises(
    kind: str, stoker: Run, tmp_path: Path
) -> None:
    words = f"{_TRAIN} --env faults.faulty_envs:Training --pool {kind} --run-name mended"
    ended = stoker(*words.split(), "--env-kwargs", "{raise_at: 1010}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the reactor is offline") >= 4
    status = json.loads((tmp_path / "runs/mended/status.json").read_text())
    assert status["state"] == "finished"
    assert status["env_steps"] >= 4096  # cut-off steps are no steps, so it made up for them


@pytest.mark.parametrize("kind", ["inline", "process", "io"])
def test_too_many_faults_stop_the_run_with_a_checkpoint(
    kind: str, stoker: Run, tmp_path: Path
) -> None:
    words = f"{_TRAIN} --env faults.faulty_envs:Training --pool {kind} --run-name broken"
    # Four environments that go each at its own pace come to four faults within 7 x 1010 steps.
    words += " --timesteps 8192 --max-faults 3"
    ended = stoker(*words.split(), "--env-kwargs", "{raise_at: 1010}")
    assert ended.returncode == 1
    assert "the reactor is offline" in ended.stderr
    assert "This is fault number 4 within 300 s, and 3 are mended" in ended.stderr
    _, saved = checkpoints.load_newest(tmp_path / "runs/broken/checkpoints")
    assert 0 < saved.state["counters"]["env_steps"] < 8192
