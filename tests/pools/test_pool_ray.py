"""The Ray pool steps as the inline pool does, bit for bit, and outlives actors and machines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="pip install 'stoker[ray]'")

import ray
from pool_envs import (
    Counter,
    Reporter,
    Wanderer,
    act,
    assert_same,
    copied,
    random_actions,
    spec_of,
)
from ray.cluster_utils import Cluster

from stoker import PPO, make_vec
from stoker.config.schema import FaultSettings
from stoker.envs.registry import EnvFactory
from stoker.errors import BadValueError, ConfigError, EnvError, StokerError, WorkerError
from stoker.pools.choose import Choice
from stoker.pools.cluster import connected
from stoker.pools.inline import InlinePool
from stoker.pools.on_ray import RayPool
from stoker.pools.ray_places import Places
from stoker.train.progress import Progress
from stoker.types import EpisodeJournal

pytestmark = pytest.mark.alone  # a cluster of several machines' processes
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A cluster whose only machine has no cores."""
    kept = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_ADDRESS")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), kept["PYTHONPATH"]]))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    made.shutdown()
    for name, value in kept.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def cluster(head: Any) -> Any:
    """With two machines of one core each, whatever the test before did to them."""
    while len(head.worker_nodes) < 2:
        head.add_node(num_cpus=1)
    head.wait_for_nodes()
    return head


@pytest.fixture
def pool_of(cluster: Any) -> Iterator[Callable[..., RayPool]]:
    made: list[RayPool] = []

    def make(make_env: Any, n_envs: int = 4, n_workers: int = 2, **settings: Any) -> RayPool:
        spec = spec_of(make_env())
        made.append(RayPool(make_env, spec, n_envs, n_workers, FaultSettings(**settings)))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def step_for(pool: RayPool, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pool.step(np.zeros((pool.n_envs, 1), np.int64))


def test_the_same_bits_as_inline(pool_of: Callable[..., RayPool]) -> None:
    settings = {"seen": "dict", "does": "multi discrete", "masks": True}
    make_env = EnvFactory(Wanderer, settings)
    pool = pool_of(make_env, 5, 2)
    inline, rng = InlinePool(make_env, pool.spec, 5), np.random.default_rng(1)
    assert_same(inline.reset(seed=4), pool.reset(seed=4))
    ended = 0
    for _ in range(25):
        actions = random_actions(pool.spec.action, 5, rng)
        ours, theirs = inline.step(actions), pool.step(actions)
        assert_same(ours, theirs)
        ended += int((ours.terminated | ours.truncated).sum())
    assert ended > 0, "no episode ended: this test would not see a reset"
    assert_same(inline.reset(seed=5), pool.reset(seed=5))
    assert (pool.n_workers, pool.n_machines) == (2, 2)
    assert pool.worked() > 0


def test_whoever_is_ready_is_received_and_groups_alternate(
    pool_of: Callable[..., RayPool],
) -> None:
    class Slow(Counter):
        def step(self, action: Any) -> Any:
            time.sleep(0.6 * (action == 2))
            return super().step(action)

    pool = pool_of(Slow)
    pool.reset(seed=0)
    assert pool.groups == (slice(0, 2), slice(2, 4))  # each of both workers has one of both
    pool.send(act(2, 0, 0, 0), np.arange(4))
    first = copied(pool.recv(1))
    assert first.env_ids.tolist() in ([1], [1, 3])
    assert pool.recv(1, slice(0, 1), patience=0.05).env_ids.size == 0
    with pytest.raises(ConfigError, match=r"\[0\] have not answered"):
        pool.send(act(0), np.array([0]))
    assert 0 in pool.recv(4).env_ids
    pool.send(act(2, 0, 0, 0), np.arange(4))
    assert pool.reset(seed=1).obs["obs"][:, 1].tolist() == [0] * 4  # amid a step, it begins anew
    assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [1] * 4


def test_replay_on_other_machines(pool_of: Callable[..., RayPool]) -> None:
    journal = EpisodeJournal(
        episode=np.array([3, 1, 0]),
        length=np.array([2, -1, 5]),
        actions=np.arange(15).reshape(5, 3, 1) % 3,
    )
    make_env = lambda: Counter(4)  # noqa: E731
    pool = pool_of(make_env, 3, 1)
    inline = InlinePool(make_env, pool.spec, 3)
    ours, theirs = inline.reset(7, journal), pool.reset(7, journal)
    unended = {"final_obs": {}}  # what ended amid the replay is nobody's business
    assert_same(ours._replace(**unended), theirs._replace(**unended))
    assert theirs.valid.tolist() == [True, False, False]
    ours, theirs = inline.step(act(0, 0, 0)), pool.step(act(0, 0, 0))
    assert_same(ours._replace(**unended), theirs._replace(**unended))


def test_as_a_vector_environment(cluster: Any) -> None:
    envs = make_vec("CartPole-v1", 3, pool="ray", n_workers=1)
    try:
        assert envs.reset(seed=0)[0].shape == (3, 4)
        assert envs.step(np.array([0, 1, 0]))[1].tolist() == [1.0] * 3
        assert envs.call("theta_threshold_radians")[0] == pytest.approx(0.2095, abs=1e-4)
    finally:
        envs.close()


def test_an_environment_that_raises_is_renewed_until_there_are_too_many(
    pool_of: Callable[..., RayPool],
) -> None:
    pool = pool_of(Reporter, 4, 1, max_faults=2)
    pool.reset(seed=0)
    for _ in range(2):
        with pytest.warns(UserWarning, match="the reactor is offline") as caught:
            batch = pool.step(act(0, Reporter.RAISE, 0, 0))
        assert batch.valid.tolist() == [True, False, True, True]
        assert batch.truncated.tolist() == [False, True, False, False]
    told = str(caught[0].message)
    assert "Environment 1 raised RuntimeError in step()" in told
    assert "reset(seed=" in told
    assert "action 1" in told
    assert "Traceback" in told
    assert pool.faults()["env_errors"] == 2
    with pytest.raises(EnvError, match="fault number 3 within 300 s"):
        pool.step(act(0, Reporter.RAISE, 0, 0))


def test_bad_values_stop_or_cut_off(pool_of: Callable[..., RayPool]) -> None:
    class Wild(Counter):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, (np.nan if action == 1 else "much" if action == 2 else reward), *rest

    pool = pool_of(Wild, 4, 1, bad_values="truncate")
    pool.reset(seed=0)
    with pytest.warns(UserWarning, match="reward"):
        batch = pool.step(act(0, 1, 2, 0))
    assert batch.valid.tolist() == [True, False, False, True]
    assert pool.faults()["bad_values"] == 2
    pool = pool_of(Wild, 4, 1)
    for action in (1, 2):
        pool.reset(seed=0)
        with pytest.raises(BadValueError, match=f"(?s)Environment 1.*action {action}"):
            pool.step(act(0, action, 0, 0))


def test_an_environment_that_cannot_be_made_there(pool_of: Callable[..., RayPool]) -> None:
    home = os.getpid()

    class Homely(Counter):
        def __init__(self) -> None:
            if os.getpid() != home:
                raise RuntimeError("no licence on this machine")
            super().__init__()

    with pytest.raises(EnvError, match=r"could not be made: RuntimeError: no licence"):
        pool_of(Homely, 1, 1)


def test_an_actor_without_torch_that_is_killed_is_replaced_and_the_others_go_on(
    pool_of: Callable[..., RayPool],
) -> None:
    pool = pool_of(Reporter)
    process, has_torch, threads = copied(pool.reset(seed=3)).obs["obs"].T
    assert has_torch.tolist() == [0] * 4
    assert threads.tolist() == [1] * 4
    killed = int(process[0])
    assert process.tolist() == [process[0], process[1]] * 2
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    pool.send(act(0, 0, 0, 0), np.arange(4))
    others = copied(pool.recv(2, patience=0.2))
    assert others.valid[np.isin(others.env_ids, [1, 3])].all()
    assert {1, 3} <= set(others.env_ids.tolist())
    with pytest.warns(UserWarning, match=r"worker of environments 0, 2, on machine .* died"):
        late = copied(pool.recv(4))
    assert (late.env_ids.tolist(), late.valid.tolist()) == ([0, 2], [False, False])
    assert time.monotonic() - began < 15
    assert pool.faults()["worker_deaths"] == 1
    now = pool.step(act(0, 0, 0, 0))
    assert now.valid.all()
    assert killed not in now.obs["obs"][:, 0]
    assert pool.n_machines == 2


def test_a_step_that_hangs_ends_at_its_deadline(pool_of: Callable[..., RayPool]) -> None:
    pool = pool_of(Reporter, 2, 2, step_deadline=1.0)
    pool.reset(seed=0)
    with pytest.warns(UserWarning, match=r"Environment 1 hangs in step\(\)") as caught:
        batch = pool.step(act(0, Reporter.HANG))
    assert batch.valid.tolist() == [True, False]
    assert "time.sleep(60)" in str(caught[0].message)
    assert pool.faults()["hangs"] == 1


def test_a_machine_that_dies_costs_one_fault_and_training_goes_on(
    cluster: Any, tmp_path: Path
) -> None:
    """All cores are taken, so that those of the dead machine must crowd on the others."""
    dies = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    model = PPO(
        "MlpPolicy",
        "CartPole-v1",
        pool="ray",
        n_envs=8,
        n_steps=32,
        batch_size=64,
        collect="overlap",
        device="cpu",
        runs_dir=str(tmp_path),
        eval_episodes=0,
        max_faults=1,
        seed=1,
    )
    with contextlib.closing(model):
        _kill_a_machine_amid_learning(model, cluster, dies)


def _kill_a_machine_amid_learning(model: PPO, cluster: Any, dies: Any) -> None:
    parts = model._training_parts()
    pool = parts.pool
    assert isinstance(pool, RayPool)
    assert parts.decisions[0].chosen == "ray, 4 workers on 3 machines"
    killed_at, seen = [0.0], list[dict[str, float]]()

    def disturb(progress: Progress) -> bool:
        seen.append(progress.metrics)
        if len(seen) == 3:
            cluster.remove_node(dies, allow_graceful=False)
            killed_at[0] = time.monotonic()
        assert not killed_at[0] or time.monotonic() - killed_at[0] < 40
        # Ray tells of each worker of the machine by itself, of the last a while after the first.
        mended = progress.metrics["faults/worker_deaths"] > 0 and pool.n_machines == 2
        return not mended or sum(row["faults/worker_deaths"] > 0 for row in seen) < 5

    with pytest.warns(UserWarning, match=r"Of the Ray cluster, machine .* is lost"):
        model.learn(10_000_000, callback=disturb)
    assert (pool.n_workers, pool.n_machines) == (4, 2)
    parts.collector.close()  # which was stepping them already, for a rollout that nobody wants
    pool.reset(seed=5)  # which waits until everybody is back
    assert pool.step(np.zeros((8, 1), np.int64)).valid.all()
    assert pool.faults()["worker_deaths"] == 1


def test_the_signal_to_leave_is_still_the_runs_own(cluster: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with connected(ray):
        assert signal.getsignal(signal.SIGTERM) is before
        with connected(ray):
            pass
        assert ray.is_initialized()  # until the last one leaves
    assert not ray.is_initialized()


def test_where_no_machine_is_left_one_is_waited_for_and_then_it_is_said(
    cluster: Any, pool_of: Callable[..., RayPool]
) -> None:
    pool = pool_of(Counter)
    pool.reset(seed=0)
    pool._crew._settings = FaultSettings(start_deadline=2.0)  # the first start may take longer
    for machine in list(cluster.worker_nodes):
        cluster.remove_node(machine, allow_graceful=False)
    began = time.monotonic()
    with (
        pytest.warns(UserWarning, match="is lost"),
        pytest.raises(WorkerError, match=r"no room for .* within 2 s \(--start-deadline"),
    ):
        step_for(pool, 20.0)  # an actor outlives its machine's daemon by a moment
    assert 2 < time.monotonic() - began < 20


class FakeRay:
    """A cluster as `ray.nodes()` shows it: cores by machine; the machines `dead` are gone."""

    def __init__(self, *cores: int, dead: tuple[str, ...] = ()) -> None:
        self._cores, self._dead = cores, dead

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": node,
                "Alive": node not in self._dead,
                "NodeManagerAddress": f"10.0.0.{cores}",
                "Resources": {"CPU": cores},
            }
            for node, cores in zip("abc", self._cores, strict=False)
        ]


@pytest.mark.parametrize(
    ("cores", "workers", "claim"),
    [((2, 2), 4, 1.0), ((2, 2), 5, 0.5), ((1,), 3, 1 / 3), ((), 1, 1)],
)
def test_all_workers_find_room(cores: tuple[int, ...], workers: int, claim: float) -> None:
    places = Places(FakeRay(*cores))
    assert places.claim(workers) == claim
    assert sum(int(each / claim) for each in cores) >= workers or not cores


def test_where_a_worker_is_replaced() -> None:
    places = Places(FakeRay(2, 4, 1))
    assert places.after("a", []) == "a"  # its process died, not the machine
    places.lose("a")
    assert places.after("a", ["b", "c"]) == "b"  # the one with the most cores for each
    assert places.after("a", ["b", "b", "b", "b"]) == "c"
    places.find("a")
    assert places.after("a", []) == "a"
    assert Places(FakeRay(2, dead=("a",))).after("a", []) is None


def test_without_a_cluster_it_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"No Ray cluster .*ray start --head.*127\.0\.0\.1:9"):
        RayPool(Counter, spec_of(Counter()), 2)


def test_without_ray_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StokerError, match=r"pool is ray.*pip install 'stoker\[ray\]'"):
        RayPool(Counter, spec_of(Counter()), 2)


def test_the_choice_in_words() -> None:
    assert Choice("ray", 4, "asked for", n_machines=2).described == "ray, 4 workers on 2 machines"
    assert Choice("process", 1, "").described == "process, 1 worker"
