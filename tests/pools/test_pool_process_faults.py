"""Workers that raise, die, hang, or lose their trainer, where the first fault is raised."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pool_envs import STRICT, Counter, MaskedCounter, Reporter, act, spec_of

from stoker.config.schema import FaultSettings
from stoker.errors import ConfigError, EnvError, StokerError, WorkerError
from stoker.pools.process import ProcessPool
from stoker.pools.slot import episode_seed


@pytest.fixture
def pool() -> Any:
    """Environments 0 and 2 in a worker, 1 and 3 in another, reset with seed 9."""
    with ProcessPool(Reporter, spec_of(Reporter()), 4, 2, STRICT) as made:
        made.pids = made.reset(seed=9).obs["obs"][:, 0].astype(int).tolist()
        yield made


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


def test_an_environment_that_raises_is_named_with_its_traceback(pool: Any) -> None:
    with pytest.raises(EnvError) as caught:
        pool.step(act(0, 0, Reporter.RAISE, 0))
    message = str(caught.value)
    assert "Environment 2 raised RuntimeError in step(): the reactor is offline" in message
    assert f"reset(seed={episode_seed(9, 2, 0)}), action 1" in message
    assert "pool_envs.py" in message


def test_the_error_is_not_lost_when_the_worker_is_sent_to_again(pool: Any) -> None:
    pool.send(act(Reporter.RAISE), np.array([2]))
    time.sleep(0.2)
    pool.send(act(0), np.array([0]))
    with pytest.raises(EnvError, match="the reactor is offline"):
        pool.recv(at_least=2)


def test_a_worker_killed_while_idle(pool: Any) -> None:
    os.kill(pool.pids[2], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        pool.step(act(0, 0, 0, 0))
    assert time.monotonic() - began < 2.0
    message = str(caught.value)
    assert "environments 0, 2" in message
    assert f"process {pool.pids[2]}" in message
    assert "exit code -9" in message


def test_a_worker_killed_amid_a_step(pool: Any) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"environments 1, 3 .* exit code -9"):
        pool.step(act(0, Reporter.DIE, 0, 0))
    assert time.monotonic() - began < 2.0


def test_a_worker_killed_amid_a_hang_while_others_answer(pool: Any) -> None:
    pool.send(act(0, 0, Reporter.HANG, 0), np.arange(4))
    assert pool.recv(at_least=3).env_ids.tolist() == [0, 1, 3]
    os.kill(pool.pids[2], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="environments 0, 2"):
        pool.recv(at_least=1)
    assert time.monotonic() - began < 2.0


def test_after_a_fault_close_leaves_nobody(pool: Any) -> None:
    with pytest.raises(WorkerError):
        pool.step(act(0, Reporter.DIE, 0, 0))
    pool.close()
    assert not any(map(is_alive, pool.pids))


def test_a_ctrl_c_at_the_terminal_is_the_trainers(pool: Any) -> None:
    for pid in set(pool.pids):
        os.kill(pid, signal.SIGINT)
    assert pool.step(act(0, 0, 0, 0)).reward.tolist() == [1, 1, 1, 1]


def failing_start(make_env: Any, **settings: Any) -> StokerError:
    with pytest.raises(StokerError) as caught:
        ProcessPool(make_env, spec_of(Counter()), 2, 2, FaultSettings(**settings))
    assert not multiprocessing.active_children()
    return caught.value


def test_a_constructor_that_raises_shows_its_traceback() -> None:
    def build() -> Counter:
        raise RuntimeError("no fuel aboard")

    error = failing_start(build)
    assert isinstance(error, EnvError)
    assert "could not be made: RuntimeError: no fuel aboard" in str(error)
    assert "in build" in str(error)


def test_a_constructor_that_leaves() -> None:
    error = failing_start(lambda: sys.exit("no fuel aboard"))
    assert isinstance(error, EnvError)
    assert "could not be made: SystemExit: no fuel aboard" in str(error)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_leaving_in_a_worker_is_an_error_like_any_other(call: str) -> None:
    class Leaver(Counter):
        def reset(self, **options: Any) -> Any:
            return sys.exit() if call == "reset" else super().reset(**options)

        def step(self, action: Any) -> Any:
            return sys.exit()

    with ProcessPool(Leaver, spec_of(Counter()), 2, 2, STRICT) as pool:
        if call == "step":
            pool.reset(seed=0)
        go = {"reset": lambda: pool.reset(seed=0), "step": lambda: pool.step(act(0, 0))}[call]
        with pytest.raises(EnvError, match=rf"Environment \d raised SystemExit in {call}\(\)"):
            go()


def test_a_constructor_that_finds_a_setting_wrong() -> None:
    def build() -> Counter:
        raise ConfigError("gravity is 0; it must be above 0.")

    error = failing_start(build)
    assert isinstance(error, ConfigError)
    assert error.problems == ["gravity is 0; it must be above 0."]


def test_a_constructor_that_ends_the_process() -> None:
    error = failing_start(lambda: os._exit(3))
    assert isinstance(error, WorkerError)
    assert "exit code 3" in str(error)


def test_what_cannot_travel_is_a_worker_error() -> None:
    lock = threading.Lock()
    error = failing_start(lambda: (lock, Counter())[1])
    assert isinstance(error, WorkerError)
    assert "cannot be sent to worker processes: TypeError: cannot pickle" in str(error)
    assert "--pool inline" in str(error)


def test_a_start_that_hangs_ends_at_its_deadline() -> None:
    began = time.monotonic()
    error = failing_start(lambda: time.sleep(60), start_deadline=0.5)
    assert isinstance(error, WorkerError)
    assert "did not start in time" in str(error)
    assert "environments [0, 1] are still being made after 0.5 s" in str(error)
    assert "test_pool_process_faults.py" in str(error), "where they are"
    assert time.monotonic() - began < 8.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reward_that_is_not_finite(value: float) -> None:
    class Wild(Counter):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return (obs, value if action == 1 else reward, *rest)

    with ProcessPool(Wild, spec_of(Counter()), 2, 2) as pool:
        pool.reset(seed=0)
        pool.step(act(0, 0))
        with pytest.raises(EnvError, match="Environment 1 returned a reward that is not finite"):
            pool.step(act(0, 1))


def test_a_mask_of_the_wrong_size_is_the_environments_fault() -> None:
    """Not "could not be made": that was long ago."""

    class Empty(MaskedCounter):
        def info(self) -> dict[str, Any]:
            return super().info() if self.t < 1 else {"action_mask": [1, 1]}

    with ProcessPool(Empty, spec_of(Empty()), 2, 2) as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvError, match=r"Environment \d gave an action mask of 2 entries"):
            pool.step(act(0, 0))


TRAINER = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
from pool_envs import Reporter, act, spec_of
from stoker.pools.process import ProcessPool
pool = ProcessPool(Reporter, spec_of(Reporter()), 3, 3)
print(*pool.reset(0).obs["obs"][:, 0].astype(int), flush=True)
pool.step(act(0, 0, {action}))
print("done", flush=True)
input()
"""


SLOW = """
import time
print("a worker starts", flush=True)
deadline = time.monotonic() + 0.7
while time.monotonic() < deadline:
    pass
from pool_envs import Reporter
"""
STARTER = """
import signal
import multiprocessing, sys
sys.path[:0] = [{here!r}, {folder!r}]
from pool_envs import Reporter, spec_of
from stoker.pools.process import ProcessPool

def make():
    import slow_to_import
    return slow_to_import.Reporter()

signal.signal(signal.SIGINT, signal.default_int_handler)  # in case the tests run in background
print("starting", flush=True)
try:
    ProcessPool(make, spec_of(Reporter()), 2, 2)
except KeyboardInterrupt:
    print("interrupted;", len(multiprocessing.active_children()), "left", flush=True)
"""


@pytest.mark.parametrize("after", [0.05, 0.15, 0.3, 0.6])
def test_a_ctrl_c_while_workers_start_is_the_trainers_alone(tmp_path: Path, after: float) -> None:
    """At the terminal it goes to all of them, wherever in their imports they are."""
    here = Path(__file__).parent
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    trainer = subprocess.Popen(
        [sys.executable, "-c", STARTER.format(here=str(here), folder=str(tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with trainer:
        assert trainer.stdout is not None
        assert trainer.stderr is not None
        assert trainer.stdout.readline() == "starting\n"
        time.sleep(after)
        os.killpg(trainer.pid, signal.SIGINT)
        said, complained = trainer.communicate(timeout=60)
    assert said.splitlines()[-1] == "interrupted; 0 left"
    assert "Traceback" not in complained


def test_a_start_leaves_ctrl_c_as_it_was() -> None:
    def found() -> Any:
        return signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGINT)

    before = found()
    with ProcessPool(Counter, spec_of(Counter()), 1, 1):
        assert found() == before
    failing_start(lambda: os._exit(3))
    assert found() == before


@pytest.mark.parametrize("action", [0, Reporter.HANG], ids=["idle", "amid a step that hangs"])
def test_when_the_trainer_is_killed_the_workers_leave(action: int) -> None:
    here = Path(__file__).parent
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(here=str(here), action=action)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with trainer:
        assert trainer.stdout is not None
        workers = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 3
        if action == 0:
            assert trainer.stdout.readline() == "done\n"
        assert all(map(is_alive, workers))
        family = [child.pid for child in psutil.Process(trainer.pid).children(recursive=True)]
        assert set(workers) <= set(family)
        trainer.kill()
        assert gone_within(family, 5.0)
