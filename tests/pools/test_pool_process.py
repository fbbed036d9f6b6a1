"""The process pool steps as the inline pool does, bit for bit, wherever its environments live."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
import psutil
import pytest
from awaitable import AsCoroutines
from leftovers import shared_memory
from pool_envs import (
    Counter,
    MaskedCounter,
    Reporter,
    Wanderer,
    act,
    assert_same,
    copied,
    random_actions,
    spec_of,
)

from stoker.envs.registry import EnvFactory
from stoker.errors import ConfigError
from stoker.pools.inline import InlinePool
from stoker.pools.process import ProcessPool
from stoker.pools.worker import Waits
from stoker.types import EpisodeJournal


def assert_alike(
    make_env: Any, n_envs: int, n_workers: int, steps: int = 25, waits: Waits = "no"
) -> None:
    """Both pools give the same bits from the same seed and actions."""
    spec, rng = spec_of(make_env()), np.random.default_rng(1)
    inline = InlinePool(make_env, spec, n_envs)
    make = partial(AsCoroutines, make_env) if waits == "as coroutines" else make_env
    with ProcessPool(make, spec, n_envs, n_workers, waits=waits) as process:
        assert_same(inline.reset(seed=4), process.reset(seed=4))
        ended = 0
        for _ in range(steps):
            actions = random_actions(spec.action, n_envs, rng)
            ours, theirs = inline.step(actions), process.step(actions)
            assert_same(ours, theirs)
            ended += int((ours.terminated | ours.truncated).sum())
        assert ended > 0, "no episode ended: this test would not see a reset"
        assert_same(inline.reset(seed=5), process.reset(seed=5))


@pytest.mark.parametrize("waits", get_args(Waits))
@pytest.mark.parametrize(
    ("seen", "does", "masks"),
    [
        ("vector", "discrete", False),
        ("doubles", "box", False),
        ("image", "multi binary", False),
        ("category", "discrete", True),
        ("dict", "multi discrete", True),
        ("lone leaf", "discrete", False),
    ],
)
def test_the_same_bits_as_inline(seen: str, does: str, masks: bool, waits: Waits) -> None:
    settings = {"seen": seen, "does": does, "masks": masks}
    assert_alike(EnvFactory(Wanderer, settings), 3, 2, waits=waits)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5, 8])
def test_the_same_bits_with_any_number_of_workers(n_workers: int) -> None:
    assert_alike(Wanderer, 5, n_workers, steps=12)


class DefinedHere(Counter):
    """A user's own class in a user's own file."""


def test_what_can_travel_to_a_worker() -> None:
    class Local(Counter):
        def look(self) -> Any:
            return super().look() + 7

    length = 2
    for make_env in (lambda: Counter(length), lambda: Local(length), DefinedHere):
        assert_alike(make_env, 2, 2, steps=4)
    assert_alike(EnvFactory("CartPole-v1"), 2, 2, steps=60)


def test_an_id_that_only_this_process_has_registered() -> None:
    gymnasium.register("OnlyHere-v0", entry_point=lambda: Counter(2))
    try:
        assert_alike(EnvFactory("OnlyHere-v0"), 2, 1, steps=4)
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_masks_and_metrics_travel() -> None:
    class Both(MaskedCounter):
        metric_names = ("height",)

        def info(self) -> dict[str, Any]:
            return {**super().info(), "metrics": {"height": 10.0 * self.t}}

    with ProcessPool(Both, spec_of(Both()), 2, 2) as pool:
        assert np.isnan(pool.reset(seed=0).metrics["height"]).all()
        batch = pool.step(act(0, 0))
        assert batch.metrics["height"].tolist() == [10, 10]
        assert batch.action_mask is not None
        assert batch.action_mask.tolist() == [[False, True, False]] * 2


def test_replay_in_workers() -> None:
    journal = EpisodeJournal(
        episode=np.array([3, 1, 0]),
        length=np.array([2, -1, 5]),
        actions=np.arange(15).reshape(5, 3, 1) % 3,
    )
    make_env = lambda: Counter(4)  # noqa: E731
    inline = InlinePool(make_env, spec_of(Counter()), 3)
    with ProcessPool(make_env, spec_of(Counter()), 3, 2) as process:
        ours, theirs = inline.reset(2, journal), process.reset(2, journal)
        assert ours.valid.tolist() == [True, False, False]
        assert ours.obs["obs"].tolist() == [[0, 2], [0, 0], [1, 0]]
        assert_same(ours, theirs)


# Sending to some and hearing from some.


def test_a_subset_steps_alone() -> None:
    with ProcessPool(Counter, spec_of(Counter()), 4, 2) as pool:
        pool.reset(seed=0)
        pool.send(act(0, 0), np.array([3, 0], np.int32))
        batch = pool.recv(at_least=2)
        assert sorted(batch.env_ids.tolist()) == [0, 3]
        assert batch.obs["obs"].tolist() == [[0, 1], [0, 1]]
        assert pool.recv(at_least=0).env_ids.size == 0
        assert pool.step(act(0, 0, 0, 0)).obs["obs"][:, 1].tolist() == [2, 1, 1, 2]


class Sleeper(Counter):
    """Action 2 takes a while."""

    def step(self, action: Any) -> Any:
        time.sleep(0.3 if action == 2 else 0.0)
        return super().step(action)


def test_who_is_quick_need_not_wait_for_who_is_slow() -> None:
    with ProcessPool(Sleeper, spec_of(Sleeper()), 2, 2) as pool:
        pool.reset(seed=0)
        pool.send(act(2, 0), np.array([0, 1]))
        assert pool.recv(at_least=1).env_ids.tolist() == [1]
        assert pool.recv(at_least=1).env_ids.tolist() == [0]


def test_two_sends_to_one_worker_before_it_is_heard() -> None:
    """Each answer is about the environments of its own message, and none is left over."""
    with ProcessPool(Sleeper, spec_of(Sleeper()), 2, 1) as pool:
        pool.reset(seed=0)
        for _ in range(2):
            pool.send(act(2), np.array([0]))
            time.sleep(0.1)  # the worker is under way when the second message comes
            pool.send(act(2), np.array([1]))
            seen: list[int] = []
            while len(seen) < 2:
                batch = pool.recv(at_least=1)
                assert batch.env_ids.size
                seen += batch.env_ids.tolist()
            assert sorted(seen) == [0, 1]
        assert pool.step(act(0, 0)).reward.tolist() == [3, 3]


def test_a_reset_while_steps_are_under_way_is_of_everyone() -> None:
    with ProcessPool(Sleeper, spec_of(Sleeper()), 2, 1) as pool:
        pool.reset(seed=0)
        pool.send(act(2), np.array([1]))
        assert pool.reset(seed=1).obs["obs"].tolist() == [[1, 0], [1, 0]]
        assert pool.step(act(0, 0)).obs["obs"].tolist() == [[1, 1], [1, 1]]


def test_a_subset_is_a_copy_that_later_steps_leave_alone() -> None:
    with ProcessPool(Counter, spec_of(Counter()), 3, 1) as pool:
        pool.reset(seed=0)
        pool.send(act(0, 0), np.array([0, 2]))
        batch = pool.recv(at_least=2)
        before = copied(batch)
        pool.step(act(0, 0, 0))
        assert_same(before, batch)


@pytest.mark.parametrize(("first", "last"), [(0, 4), (0, 2), (2, 4), (1, 3)])
def test_a_range_is_a_view_of_the_shared_memory(first: int, last: int) -> None:
    with ProcessPool(Counter, spec_of(Counter()), 4, 2) as pool:
        pool.reset(seed=0)
        pool.send(act(*[0] * (last - first)), np.arange(first, last))
        batch = pool.recv(at_least=last - first)
        assert batch.env_ids.tolist() == list(range(first, last))
        shared = np.frombuffer(pool.memory, np.uint8)
        for part in (batch.obs["obs"], batch.reward, batch.terminated, batch.valid):
            assert np.shares_memory(part, shared)


def test_sending_to_who_has_not_answered_is_refused() -> None:
    with ProcessPool(Counter, spec_of(Counter()), 2, 1) as pool:
        pool.reset(seed=0)
        pool.send(act(0), np.array([1]))
        with pytest.raises(ConfigError, match=r"Environments \[1\] have not answered their last"):
            pool.send(act(0, 0), np.array([0, 1]))
        assert pool.recv(at_least=1).obs["obs"].tolist() == [[0, 1]]


# Groups that alternate.


@pytest.mark.parametrize(
    ("n_envs", "n_workers", "groups"),
    [
        (4, 2, [(0, 2), (2, 4)]),
        (7, 3, [(0, 3), (3, 7)]),
        (3, 2, [(0, 3)]),
        (2, 1, [(0, 1), (1, 2)]),
    ],
)
def test_groups_where_every_worker_has_some_of_both(
    n_envs: int, n_workers: int, groups: list[tuple[int, int]]
) -> None:
    with ProcessPool(Counter, spec_of(Counter()), n_envs, n_workers) as pool:
        assert [(group.start, group.stop) for group in pool.groups] == groups


def test_groups_alternate_and_every_step_is_seen_once() -> None:
    """Steps are numbered: one that is lost, doubled or swapped would show."""
    with ProcessPool(lambda: Counter(99), spec_of(Counter()), 7, 2) as pool:
        pool.reset(seed=0)
        everyone = np.arange(7)
        for group in pool.groups:
            pool.send(act(*[0] * len(everyone[group])), everyone[group])
        for t in range(1, 50):
            for group in pool.groups:
                batch = pool.recv(len(everyone[group]), among=group)
                assert batch.env_ids.tolist() == everyone[group].tolist()
                assert batch.reward.tolist() == [t] * len(batch.reward)
                pool.send(act(*[0] * len(batch.reward)), batch.env_ids)


@pytest.mark.alone
def test_patience_ends_and_what_was_late_comes_later() -> None:
    with ProcessPool(Sleeper, spec_of(Sleeper()), 4, 2) as pool:
        pool.reset(seed=0)
        pool.send(act(0, 0, 2, 0), np.arange(4))
        began = time.monotonic()
        batch = pool.recv(4, patience=0.15)
        assert 0.1 < time.monotonic() - began < 0.28
        assert 2 not in batch.env_ids
        assert pool.recv(1, among=slice(2, 3), patience=0.0).env_ids.size == 0
        assert pool.recv(1, among=slice(2, 3)).env_ids.tolist() == [2]


# What a worker is, and what it leaves behind.


def test_workers_load_no_torch_and_use_one_thread() -> None:
    import torch

    assert "torch" in sys.modules
    assert torch.get_num_threads() > 0
    with ProcessPool(Reporter, spec_of(Reporter()), 2, 2) as pool:
        seen = pool.reset(seed=0).obs["obs"]
        assert seen[:, 1].tolist() == [0, 0], "torch is loaded in a worker"
        assert seen[:, 2].tolist() == [1, 1]
        assert len({os.getpid(), *seen[:, 0].astype(int).tolist()}) == 3


def test_starting_leaves_the_surroundings_as_they_were() -> None:
    main, before = sys.modules["__main__"], dict(os.environ)
    own = (main.__spec__, getattr(main, "__file__", None))
    with ProcessPool(Counter, spec_of(Counter()), 1, 1):
        pass
    assert (main.__spec__, getattr(main, "__file__", None)) == own
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("n_envs", "n_workers", "handful"), [(64, 2, 24), (32, 16, 8), (16, 2, 6), (3, 2, 1), (1, 1, 1)]
)
def test_a_handful_leaves_every_worker_something_to_step(
    n_envs: int, n_workers: int, handful: int
) -> None:
    with ProcessPool(Counter, spec_of(Counter()), n_envs, n_workers) as pool:
        assert pool.handful == handful


def test_close_leaves_no_process_and_no_shared_memory() -> None:
    before = shared_memory()
    pool = ProcessPool(Reporter, spec_of(Reporter()), 3, 3)
    workers = pool.reset(seed=0).obs["obs"][:, 0].astype(int).tolist()
    assert all(psutil.pid_exists(pid) for pid in workers)
    pool.close()
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in workers)
    assert shared_memory() <= before


def test_a_worker_closes_its_environments(tmp_path: Path) -> None:
    class Leaver(Counter):
        def close(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    with ProcessPool(Leaver, spec_of(Counter()), 2, 2) as pool:
        pool.reset(seed=0)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Workers must not run the user's script again, nor import the torch that it imports."""
    script = tmp_path / "train_me.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import gymnasium, numpy as np
            import torch
            print("the script runs")

            class Mine(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(-1, 1, (1,))
                action_space = gymnasium.spaces.Discrete(2)
                def reset(self, seed=None, options=None):
                    return np.array([float("torch" in sys.modules)], np.float32), {}
                def step(self, action):
                    return np.array([action], np.float32), 1.0, False, False, {}

            from stoker.pools.process import ProcessPool
            from stoker.pools.spaces import describe_env
            spec = describe_env("mine", Mine(), {})
            with ProcessPool(lambda: Mine(), spec, 2, 2) as pool:
                print("torch:", pool.reset(0).obs["obs"].ravel().tolist())
                print("steps:", pool.step(np.array([[0], [1]])).obs["obs"].ravel().tolist())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the script runs",
        "torch: [0.0, 0.0]",
        "steps: [0.0, 1.0]",
    ]


def test_a_script_whose_process_was_spawned(tmp_path: Path) -> None:
    """There what it defines is of a module of another name, which workers have not either."""
    script = tmp_path / "train_me.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import gymnasium, numpy as np

            class Mine(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(-1, 1, (1,))
                action_space = gymnasium.spaces.Discrete(2)
                def reset(self, seed=None, options=None):
                    return np.zeros(1, np.float32), {}
                def step(self, action):
                    return np.array([action], np.float32), 1.0, False, False, {}

            def work():
                from stoker.pools.process import ProcessPool
                from stoker.pools.spaces import describe_env
                with ProcessPool(Mine, describe_env("mine", Mine(), {}), 2, 2) as pool:
                    pool.reset(0)
                    print(pool.step(np.array([[0], [1]])).obs["obs"].ravel().tolist(), flush=True)

            if __name__ == "__main__":
                process = multiprocessing.get_context("spawn").Process(target=work)
                process.start()
                process.join()
            """
        )
    )
    words = [sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["[0.0, 1.0]"], done.stderr


def test_a_pool_that_is_forgotten_takes_its_workers_along() -> None:
    """Its memory goes to the next pool, which they would disturb."""
    pool = ProcessPool(Counter, spec_of(Counter()), 4, 2)
    pool.reset(seed=0)
    workers = [hand.process.pid for hand in pool._crew._hands]
    assert all(psutil.pid_exists(pid) for pid in workers)
    del pool
    gc.collect()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("waits", ["no", "in threads"])
def test_messages_may_be_larger_than_what_a_pipe_holds(waits: Waits) -> None:
    """To all workers at once, as what environments did so far may be, when a run is resumed."""
    with pool_of_four(waits) as pool:
        pool.reset(seed=0)
        large = [bytes([number]) * 4_000_000 for number in range(4)]
        asking = threading.Thread(target=pool.set_attr, args=("label", large), daemon=True)
        asking.start()
        asking.join(30.0)
        assert not asking.is_alive(), "the trainer waits for workers, and they for the trainer"
        assert pool.get_attr("label", [0, 1, 2, 3]) == large


@pytest.mark.parametrize("waits", ["no", "in threads"])
def test_closing_waits_for_no_message_that_was_broken_off(waits: Waits) -> None:
    """Ctrl-C, say, while one was written that is larger than what a pipe holds."""
    pool = pool_of_four(waits)
    pool.reset(seed=0)
    hands = pool._crew._hands
    for hand in hands:
        os.kill(hand.process.pid, signal.SIGSTOP)  # so that nobody reads
    asking = threading.Thread(
        target=pool.set_attr, args=("label", [bytes(4_000_000)] * 4), daemon=True
    )
    asking.start()
    while not hands[0].half_written:
        time.sleep(0.01)
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(30.0)
    assert not closing.is_alive()


def test_what_cannot_be_sent_leaves_nothing_half_written() -> None:
    with pool_of_four("no") as pool:
        pool.reset(seed=0)
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            pool.set_attr("label", [threading.Lock()] * 4)
        assert not any(hand.half_written for hand in pool._crew._hands)
        pool.step(act(0, 0, 0, 0))


def pool_of_four(waits: Waits) -> ProcessPool:
    """With two workers."""
    return ProcessPool(Counter, spec_of(Counter()), 4, 2, waits=waits)
