"""Workers that die, environments that hang or stall, trainers that are killed: real ones."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from faulty_envs import (
    DIE,
    HANG,
    HOLD,
    KILL,
    NAP,
    RAISE,
    RESET,
    WELL,
    ClosesSlowly,
    Faulty,
    Interrupts,
    Patient,
    StuckReset,
    Threads,
    spec_of,
)
from leftovers import shared_memory
from test_env_faults import act, first_obs

from stoker.config.schema import FaultSettings
from stoker.errors import EnvError, WorkerError
from stoker.pools import crew
from stoker.pools.journal import JournalKeeper
from stoker.pools.launch import process_context
from stoker.pools.process import ProcessPool
from stoker.pools.slot import episode_seed
from stoker.pools.worker import Waits

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def pool_of(make_env: Any = Faulty, n: int = 4, workers: int = 2, **settings: Any) -> ProcessPool:
    """Of four environments, 0 and 2 live in one worker, 1 and 3 in the other."""
    return ProcessPool(make_env, spec_of(Faulty()), n, workers, FaultSettings(**settings))


def pids_of(pool: ProcessPool) -> list[int]:
    return [hand.process.pid for hand in pool._crew._hands]


@pytest.mark.alone
@pytest.mark.parametrize(("how", "code"), [(DIE, 7), (KILL, -9)])
def test_a_worker_that_dies_is_replaced(how: int, code: int) -> None:
    with pool_of() as pool:
        pool.reset(seed=3)
        before = pids_of(pool)
        began = time.monotonic()
        with pytest.warns(UserWarning, match=rf"environments 1, 3 .* died with exit code {code}"):
            batch = pool.step(act(WELL, how, WELL, WELL))
        assert time.monotonic() - began < 2.0 + 3.0, "2 s to notice; what remains is a start"
        assert batch.valid.tolist()[:3] == [True, False, True]
        assert batch.truncated.tolist()[:3] == [False, True, False]
        assert batch.obs["obs"][1].tolist() == first_obs(1, episode=1)
        batch = pool.step(act(WELL, WELL, WELL, WELL))
        assert batch.reward.tolist()[:3] == [2, 1, 2]
        assert pool.faults()["worker_deaths"] == 1
        assert len({*before, *pids_of(pool)}) == 3


def test_who_was_idle_in_a_dead_worker_answers_with_a_new_episode() -> None:
    with pool_of() as pool:
        pool.reset(seed=3)
        pool.step(act(WELL, WELL, WELL, WELL))
        os.kill(pids_of(pool)[0], signal.SIGKILL)
        with pytest.warns(UserWarning, match="environments 0, 2 .* died with exit code -9"):
            batch = pool.step(act(WELL, WELL, WELL, WELL))
        assert batch.truncated.tolist() == [True, False, True, False]
        assert batch.valid.tolist() == [False, True, False, True]
        assert [batch.obs["obs"][i].tolist() for i in (0, 2)] == [first_obs(0, 1), first_obs(2, 1)]


@pytest.mark.skipif(process_context().get_start_method() != "forkserver", reason="has no server")
def test_workers_that_outlive_their_server_are_ended_before_others_have_their_rows() -> None:
    """Two that write to the same rows would be learned from, and nobody could tell."""

    def step_until_both_are_replaced(pool: ProcessPool) -> None:
        deadline = time.monotonic() + 20.0
        while pool.faults()["worker_deaths"] < 2 and time.monotonic() < deadline:
            pool.step(act(WELL, WELL, WELL, WELL))

    with pool_of() as pool:
        pool.reset(seed=3)
        before = [hand.itself for hand in pool._crew._hands]
        os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="is lost: the server that workers come from died"):
            step_until_both_are_replaced(pool)
        assert [crew._runs(worker) for worker in before] == [False, False]
        assert all(crew._runs(hand.itself) for hand in pool._crew._hands)
        for _ in range(3):
            batch = pool.step(act(WELL, WELL, WELL, WELL))
        assert batch.valid.all(), "all of the new ones step"


def test_who_is_dead_but_not_yet_buried_is_not_waited_for() -> None:
    """Whoever adopts a lost worker may take its time to bury it, or never do so."""
    asleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ours, theirs = multiprocessing.Pipe()
    hand = crew.Hand(_Said(255), ours, theirs, psutil.Process(asleep.pid))
    assert hand.lost
    began = time.monotonic()
    crew._end(hand)
    assert time.monotonic() - began < 1.0
    assert psutil.Process(asleep.pid).status() == psutil.STATUS_ZOMBIE
    asleep.wait()


class _Said:
    """A process as it is known from a server that has died."""

    def __init__(self, exitcode: int) -> None:
        self.exitcode = exitcode

    def is_alive(self) -> bool:
        return False

    def join(self, seconds: float) -> None:
        """It is over, as far as is known."""


@pytest.mark.skipif(process_context().get_start_method() != "forkserver", reason="has no server")
def test_workers_that_outlive_their_server_have_time_to_close(tmp_path: Path) -> None:
    pool = pool_of(partial(ClosesSlowly, str(tmp_path)), n=3, workers=3)
    pool.reset(seed=3)
    os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    time.sleep(0.2)  # until it is known
    pool.close()
    assert len(list(tmp_path.iterdir())) == 3, "each has written that it closed"


def test_a_worker_that_cannot_be_started_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the server that forks it dies at that moment; what there is can be saved then."""

    def start(process: Any) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pool_of() as pool:
        pool.reset(seed=3)
        monkeypatch.setattr(process_context().Process, "start", start)
        os.kill(pids_of(pool)[0], signal.SIGKILL)
        with (
            pytest.warns(UserWarning, match="died with exit code -9"),
            pytest.raises(WorkerError, match=r"environments 0, 2 could not be started: BrokenPipe"),
        ):
            pool.step(act(WELL, WELL, WELL, WELL))


def test_others_go_on_while_a_worker_is_replaced() -> None:
    def step_until_all_have_answered(pool: ProcessPool) -> int:
        pool.send(act(WELL, KILL, WELL, WELL), np.arange(4))
        steps, pending = 0, {1, 3}
        while pending:
            batch = pool.recv(at_least=1)
            pending -= set(batch.env_ids.tolist())
            mine = batch.env_ids[batch.env_ids % 2 == 0]
            steps += len(mine)
            pool.send(act(*[WELL] * len(mine)), mine)
        return steps

    with pool_of() as pool:
        pool.reset(seed=3)
        with pytest.warns(UserWarning, match="died"):
            steps = step_until_all_have_answered(pool)
        assert steps > 20, "they waited"


@pytest.mark.parametrize("how", [HANG, HOLD], ids=["asleep", "holding the GIL"])
def test_a_step_that_hangs_is_shown_and_ended(how: int) -> None:
    with pool_of(step_deadline=0.5) as pool:
        pool.reset(seed=3)
        pool.send(act(WELL, how, WELL, WELL), np.arange(4))
        assert set(pool.recv(at_least=2).env_ids.tolist()) >= {0, 2}
        with pytest.warns(UserWarning, match="hangs") as caught:
            batch = pool.recv(at_least=1, among=slice(1, 2))
        message = str(caught[0].message)
        assert "Environment 1 hangs in step(): it has taken more than 0.5 s" in message
        assert f"reset(seed={episode_seed(3, 1, 0)}), action {how}" in message
        assert "faulty_envs.py" in message, "what its threads are doing"
        assert (bool(batch.truncated[0]), bool(batch.valid[0])) == (True, False)
        assert batch.obs["obs"][0].tolist() == first_obs(1, episode=1)
        assert pool.faults()["hangs"] == 1


def test_a_reset_that_hangs_is_ended() -> None:
    with pool_of(StuckReset, reset_deadline=0.5) as pool:
        pool.reset(seed=3)
        with pytest.warns(UserWarning, match=r"Environment 2 hangs in reset\(\)") as caught:
            batch = pool.step(act(WELL, WELL, RESET, WELL))
        assert f"reset(seed={episode_seed(3, 2, 1)})." in str(caught[0].message)
        assert (bool(batch.truncated[2]), bool(batch.valid[2])) == (True, False)


def test_a_first_reset_that_hangs_is_an_error() -> None:
    def make() -> Faulty:
        env = Faulty()
        env.broken_reset = "hang"
        return env

    with (
        pool_of(make, reset_deadline=0.3) as pool,
        pytest.raises(EnvError, match=r"Environment \d hangs in reset\(\)"),
    ):
        pool.reset(seed=3)


@pytest.mark.alone
def test_one_that_stalls_does_not_hold_up_its_neighbours() -> None:
    with pool_of(Threads, n=4, workers=1) as pool:
        pool.reset(seed=3)
        pool.send(act(NAP, WELL, WELL, WELL), np.arange(4))
        steps, began = 0, time.monotonic()
        while True:
            batch = pool.recv(at_least=1)
            others = batch.env_ids[batch.env_ids != 0]
            steps += len(others)
            if 0 in batch.env_ids:
                break
            pool.send(act(*[WELL] * len(others)), others)
        assert 0.9 < time.monotonic() - began < 2.5
        assert steps > 30
        assert batch.reward[batch.env_ids == 0] == [1]
        pool.recv(4)
        time.sleep(0.1)
        for _ in range(3):
            batch = pool.step(act(WELL, WELL, WELL, WELL))
        assert batch.obs["obs"][:, 0].tolist() == [1, 1, 1, 1], "back in the main thread"


def test_stall_relief_can_be_turned_off() -> None:
    with pool_of(Threads, n=4, workers=1, stall_after=0.0) as pool:
        pool.reset(seed=3)
        pool.send(act(NAP, WELL), np.arange(2))  # which are of one group
        time.sleep(0.3)
        assert pool.recv(2, patience=0.2).env_ids.size == 0
        assert pool.recv(2).obs["obs"][:, 0].tolist() == [1, 1]


def test_nobody_is_relieved_before_stall_after() -> None:
    with pool_of(Threads, n=4, workers=1, stall_after=5.0) as pool:
        pool.reset(seed=3)
        for _ in range(20):
            pool.step(act(WELL, WELL, WELL, WELL))
        pool.send(act(NAP, WELL), np.arange(2))
        assert pool.recv(2).obs["obs"][:, 0].tolist() == [1, 1], "both in the main thread"


def test_stalls_lose_no_step_and_double_none() -> None:
    """Rewards count steps, so what is stepped twice or not at all would show."""

    class Restless(Faulty):
        def step(self, action: Any) -> Any:
            if self.np_random.random() < 0.1:
                time.sleep(float(self.np_random.uniform(0.0, 0.06)))
            return super().step(action)

    with pool_of(Restless, n=8, workers=2, stall_after=0.005) as pool:
        pool.reset(seed=3)
        taken = np.zeros(8, int)
        pool.send(act(*[WELL] * 8), np.arange(8))
        deadline = time.monotonic() + 4.0
        while time.monotonic() < deadline:
            batch = pool.recv(at_least=2)
            taken[batch.env_ids] += 1
            assert batch.reward.tolist() == taken[batch.env_ids].tolist()
            pool.send(act(*[WELL] * len(batch.env_ids)), batch.env_ids)
        assert taken.min() > 20


def test_a_journal_kept_through_deaths_brings_everyone_back() -> None:
    rng, journal = np.random.default_rng(0), JournalKeeper(4, 1, dtype="int64")
    make = lambda: Faulty(length=5)  # noqa: E731
    with pool_of(make, max_faults=1000) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool.reset(seed=3)
        for t in range(40):
            if t % 8 == 3:
                os.kill(rng.choice(pids_of(pool)), signal.SIGKILL)
            actions = rng.choice([*[WELL] * 20, RAISE, KILL], size=(4, 1))
            batch = pool.step(actions)
            journal.take(actions, batch)
        assert pool.faults()["worker_deaths"] >= 5
    with pool_of(make) as other:
        again = other.reset(3, journal.journal())
        assert again.obs["obs"].tolist() == batch.obs["obs"].tolist()


def test_what_environments_print_goes_to_standard_error() -> None:
    program = """
import numpy as np
from faulty_envs import Chatty, spec_of
from stoker.pools.process import ProcessPool
with ProcessPool(Chatty, spec_of(Chatty()), 2, 2) as pool:
    pool.reset(0)
    pool.step(np.zeros((2, 1), np.int64))
print("the trainer's own")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "the trainer's own\n", done.stderr
    assert done.stderr.count("a word from the environment") == 2
    assert done.stderr.count("An environment prints to standard output") == 1


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")
def test_killing_everyone_leaves_nothing_in_shared_memory() -> None:
    program = """
from faulty_envs import Faulty, spec_of
from stoker.pools.process import ProcessPool
pool = ProcessPool(Faulty, spec_of(Faulty()), 4, 2)
pool.reset(0)
print("ready", flush=True)
input()
"""
    before = shared_memory()
    trainer = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        family = psutil.Process(trainer.pid).children(recursive=True)
        assert len(family) >= 4, "a resource tracker, a fork server and two workers"
        for process in [psutil.Process(trainer.pid), *family]:
            process.kill()
    assert shared_memory() <= before


@pytest.mark.parametrize("waits", ["no", "in threads", "as coroutines"])
def test_workers_whose_trainer_is_gone_leave_without_a_word(waits: str) -> None:
    program = f"""
import os
import numpy as np
from faulty_envs import Orphan, AsyncOrphan, spec_of
from stoker.pools.process import ProcessPool
make_env = AsyncOrphan if {waits!r} == "as coroutines" else Orphan
pool = ProcessPool(make_env, spec_of(Orphan()), 4, 2, waits={waits!r})
pool.reset(0)
pool.send(np.zeros((4, 1), np.int64), np.arange(4))
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""


@pytest.mark.parametrize("waits", ["no", "in threads"])
def test_a_ctrl_c_while_a_pool_is_closed_leaves_nobody_behind(waits: Waits) -> None:
    before = shared_memory()
    pool = ProcessPool([Interrupts, Faulty], spec_of(Faulty()), 2, 2, waits=waits)
    pool.reset(seed=3)
    pids = pids_of(pool)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert not any(map(is_alive, pids))
    assert shared_memory() <= before
    pool.close()


def test_who_still_receives_from_a_closed_pool_hires_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "GRACE_S", 0.1)
    pool = pool_of(n=2)
    pool.reset(seed=3)
    pool.send(act(HANG, HANG), np.arange(2))
    refused = threading.Event()

    def receive() -> None:
        try:
            pool.recv(2)
        except (OSError, WorkerError):
            refused.set()

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    pool.close()
    assert refused.wait(30)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("moment", ["_revive", "_post", "_listen"])
def test_who_asks_while_another_closes_the_pool_is_told_so(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(n=4)
    asks = getattr(pool._crew, moment)

    def closes_first(*given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        other = threading.Thread(target=pool.close)
        other.start()
        other.join(30)
        return asks(*given, **named)

    monkeypatch.setattr(pool._crew, moment, closes_first)
    with pytest.raises(WorkerError, match="The pool is closed"):
        pool.ask("get_attr", dict.fromkeys(range(4), ("spec",)))


def test_who_waits_for_an_answer_when_the_pool_is_closed_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "GRACE_S", 0.1)
    pool = pool_of(Patient, n=4)
    closing = threading.Timer(0.3, pool.close)
    closing.start()
    with pytest.raises(WorkerError, match="The pool is closed"):
        pool.ask("call", dict.fromkeys(range(4), ("wait", (60.0,), {})))
    closing.join(30)


# Through the command.


def test_a_ctrl_c_while_a_run_closes_leaves_nobody_behind(
    start_stoker: Start, tmp_path: Path
) -> None:
    before = shared_memory()
    words = (
        "train --env faults.faulty_envs:Interrupted --pool process --n-steps 8 --batch-size 8 "
        "--timesteps 8 --eval-episodes 0 --device cpu --run-name twice"
    )
    process = start_stoker(*words.split())
    trainer, family = psutil.Process(process.pid), set[psutil.Process]()
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            family |= set(trainer.children(recursive=True))
        time.sleep(0.01)
    _, error = process.communicate()
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert len(family) >= 3, "a resource tracker, a fork server and a worker"
    psutil.wait_procs(family, timeout=30)
    assert not any(is_alive(child.pid) for child in family)
    assert shared_memory() <= before
    assert json.loads((tmp_path / "runs/twice/status.json").read_text())["state"] == "finished"


def test_fifty_kills_during_training(start_stoker: Start, tmp_path: Path) -> None:
    """No deadlock, no orphan, nothing left, and the reward that it should have."""
    before = shared_memory()
    words = (
        "train --env CartPole-v1 --pool process --n-workers 2 --n-envs 8 --n-steps 64 "
        "--batch-size 128 --timesteps 64k --device cpu --max-faults 1000 --seed 1 "
        "--network-arch 64,64 --learning-rate 1e-3 --run-name killed --json"
    )
    process = start_stoker(*words.split())
    trainer, rng = psutil.Process(process.pid), np.random.default_rng(0)
    killed, family = 0, set()
    done = threading.Event()

    def hunt() -> None:
        nonlocal killed
        while not done.wait(0.1) and killed < 50:
            if not (tmp_path / "runs/killed/metrics.jsonl").exists():
                continue
            try:
                found = trainer.children(recursive=True)
                family.update(child.pid for child in found)
                workers = [  # whose parent is the fork server, which is the trainer's own child
                    child
                    for child in found
                    if "forkserver" in " ".join(child.cmdline()) and child.ppid() != trainer.pid
                ]
                if workers:
                    rng.choice(np.array(workers, object)).kill()
                    killed += 1
            except psutil.Error:
                continue

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        out, error = process.communicate(timeout=150)
    finally:
        done.set()
        hunter.join()
        process.kill()
    assert process.returncode == 0, error[-3000:]
    assert killed == 50
    assert json.loads(out.splitlines()[-1])["eval_reward"] >= 475
    time.sleep(0.5)
    assert not [pid for pid in family if is_alive(pid)]
    assert shared_memory() <= before


def test_training_goes_on_past_an_environment_that_hangs(stoker: Run, tmp_path: Path) -> None:
    words = (
        "train --env faults.faulty_envs:Training --pool process --timesteps 4096 --n-envs 4 "
        "--n-steps 128 --device cpu --eval-episodes 0 --run-name woken --step-deadline 1"
    )
    # The one that is tried takes a thousand steps at most, so this comes in training alone.
    ended = stoker(*words.split(), "--env-kwargs", "{sleep_at: 1010}", "--n-workers", "1")
    assert ended.returncode == 0, ended.stderr
    assert "hangs in step()" in ended.stderr
    status = json.loads((tmp_path / "runs/woken/status.json").read_text())
    assert status["state"] == "finished"
    assert status["env_steps"] >= 4096  # cut-off steps are no steps, so it made up for them
