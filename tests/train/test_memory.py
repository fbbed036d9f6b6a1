"""Memory that runs out: fewer rows at once, no trace of what failed, and it is said and kept.

On a CPU nothing runs out by itself, so the loss pretends to: for more rows than `most` it raises
what torch raises, on the way forward or on the way back.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor

from stoker.algos import ppo
from stoker.config import resolve
from stoker.config.load import from_flat
from stoker.errors import ConfigError, MemoryShortError
from stoker.runs import checkpoint as checkpoints
from stoker.train import learning, memory
from stoker.train.build import build
from stoker.train.loop import run
from stoker.train.overlap import Decision
from stoker.train.parts import Parts
from stoker.train.session import Session
from stoker.train.signals import StopRequest
from stoker.train.start import resume, train
from stoker.train.swap import Built, Swap
from stoker.types import Loss, LossFunction, as_it_is

_SMALL: dict[str, Any] = {
    "device": "cpu",
    "n_envs": 2,
    "n_steps": 48,
    "batch_size": 32,
    "n_epochs": 3,
    "network_arch": (16,),
    "activation": "elu",  # by autograd, as on a GPU
    "pool": "inline",
    "collect": "step",
    "timesteps": 288,
    "eval_episodes": 0,
}
_FOUND = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.78 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 6.10 GiB memory in use."
)


def parts_of(**settings: Any) -> Parts:
    return build(resolve({"env": "CartPole-v1", **_SMALL, **settings}))


def trained(parts: Parts) -> tuple[dict[str, Tensor], dict[str, float]]:
    """All state of a run that went to its end, and what it measured last."""
    session = Session(parts, None)
    run(session, lambda _: None, StopRequest(1.0))
    parts.close()
    timed = re.compile("time/|phase/")
    metrics = {name: value for name, value in session.metrics.items() if not timed.match(name)}
    return {name: value.clone() for name, value in parts.tensors().items()}, metrics


def check_same(one: Any, other: Any) -> None:
    """To the bit."""
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), name
    assert one[1] == other[1]


class Shortage:
    """Memory for `most` rows at once, from the update numbered `begins` on."""

    def __init__(self, most: int, where: str = "forward", begins: int = 0) -> None:
        self.most, self.where, self.begins = most, where, begins
        self.failed: list[int] = []
        self._plain = ppo.loss

    def loss(self, now: Any, batch: Any, *given: Any) -> Loss:
        found, rows = self._plain(now, batch, *given), len(batch.valid)
        self.begins -= 1
        if self.begins < 0 and rows > self.most:
            if self.where == "forward":
                self._fail(rows)
            found.total.register_hook(lambda gradient: self._fail(rows))
        return found

    def _fail(self, rows: int) -> None:
        self.failed.append(rows)
        raise torch.OutOfMemoryError(_FOUND)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shortage]:
    def begin(*given: Any, **named: Any) -> Shortage:
        shortage = Shortage(*given, **named)
        monkeypatch.setattr(ppo, "loss", shortage.loss)
        return shortage

    return begin


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Memory ran out")
        yield


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "tasks:Masked", "tasks:EchoDict"])
@pytest.mark.parametrize("micro_batch", [7, 16])
def test_training_in_micro_batches_comes_to_the_same(env: str, micro_batch: int) -> None:
    settings = {"env": env, "clip_range_vf": 0.2, "ent_coef": 0.01, "timesteps": 192}
    whole, parts = (trained(parts_of(**settings, micro_batch=rows)) for rows in (0, micro_batch))
    assert whole[1].pop("train/micro_batches") == 1
    assert parts[1].pop("train/micro_batches") == -(-32 // micro_batch)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-3, atol=1e-4)
    learned = {name for name in whole[0] if name.startswith(("policy/", "learner/exp"))}
    assert any(not torch.equal(parts[0][name], whole[0][name]) for name in learned)
    for name in learned:
        torch.testing.assert_close(parts[0][name], whole[0][name], rtol=1e-3, atol=1e-4)
    rng = "learner/shuffle_rng"
    assert torch.equal(parts[0][rng], whole[0][rng])


@pytest.mark.parametrize(
    ("where", "most", "left"),
    [
        ("backward", 31, 16),
        ("forward", 9, 8),
        ("backward", 9, 8),
        ("forward", 3, 2),
        ("backward", 1, 1),
    ],
)
def test_an_attempt_that_fails_leaves_no_trace(
    where: str, most: int, left: int, short: Callable[..., Shortage]
) -> None:
    """The run ends with the bits of one that had parts of that size from the beginning."""
    settings: dict[str, Any] = {"target_kl": 0.005, "timesteps": 192}
    expected = trained(parts_of(**settings, micro_batch=left))
    shortage = short(most, where)
    parts = parts_of(**settings)
    check_same(trained(parts), expected)
    assert shortage.failed == [32 >> n for n in range(6) if 32 >> n > most]
    assert parts.config.compute.micro_batch == left


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_what_the_parts_before_it_gave_is_no_trace_either(
    where: str, short: Callable[..., Shortage]
) -> None:
    expected = trained(parts_of(micro_batch=4))
    shortage = short(4, where, begins=2)  # the third of four parts
    check_same(trained(parts_of(micro_batch=8)), expected)
    assert shortage.failed == [8]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_may_run_out_at_any_time(where: str, short: Callable[..., Shortage]) -> None:
    """In the 14th update, say: the fifth of the second rollout."""
    later = parts_of()
    assert isinstance(later.learner, learning.Learner)
    made = 0

    def attempt(update: Callable[[], None]) -> None:
        nonlocal made
        later.learner.micro_batch = 32 if made < 13 else 8  # type: ignore[union-attr]
        made += 1
        update()

    later.learner.attempt = attempt
    expected = trained(later)
    shortage = short(8, where, begins=13)
    check_same(trained(parts_of()), expected)
    assert shortage.failed == [32, 16]
    assert made == 27


def test_it_is_said_once_a_size_in_words(short: Callable[..., Shortage]) -> None:
    short(8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(parts_of())
    said = [str(warning.message) for warning in caught if "Memory ran" in str(warning.message)]
    assert len(said) == 2
    assert said[0].startswith(
        "Memory ran out in an update with 32 rows at once (CUDA out of memory. Tried to allocate "
        "2.00 GiB. GPU 0 has a total capacity of 7.78 GiB of which 1.20 GiB is free). From now on "
        "it is 16 at once, which comes to the same"
    )
    assert "with 16 rows at once" in said[1]
    assert all("batch_size" in one and "network_arch" in one for one in said)


def test_other_errors_are_nobodys_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Loss:
        raise RuntimeError("something else")

    monkeypatch.setattr(ppo, "loss", broken)
    parts = parts_of()
    with pytest.raises(RuntimeError, match="something else"):
        trained(parts)
    parts.close()
    assert parts.learner.micro_batch == 32  # type: ignore[union-attr]


def test_an_error_that_memory_led_to_counts_as_well() -> None:
    """The end of a capture fails for what failed in it."""
    sizes = [4]

    def attempt() -> int:
        try:
            if sizes[-1] > 1:
                raise torch.OutOfMemoryError(_FOUND)
        finally:
            if sizes[-1] > 2:
                raise RuntimeError("operation failed due to a previous error during capture")
        return sizes[-1]

    assert memory.fitted(attempt, lambda _: sizes.append(sizes[-1] // 2)) == 1
    assert sizes == [4, 2, 1]


def test_the_size_is_kept_and_a_resumed_run_begins_with_it(
    tmp_path: Path, short: Callable[..., Shortage]
) -> None:
    shortage = short(8)
    settings = {**_SMALL, "env": "CartPole-v1", "runs_dir": str(tmp_path), "run_name": "a"}
    train(resolve({**settings, "timesteps": 96}))
    assert shortage.failed == [32, 16]
    _, saved = checkpoints.load_newest(tmp_path / "a" / "checkpoints")
    assert saved.config["micro_batch"] == 8
    assert from_flat(saved.config).minibatch == 32
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["train/micro_batches"] for line in lines] == [4]
    resume(tmp_path / "a", timesteps=288)
    assert shortage.failed == [32, 16], "it did not have to be found out again"


def test_a_row_that_does_not_fit_is_an_error_in_words_and_the_run_is_saved(
    tmp_path: Path, short: Callable[..., Shortage]
) -> None:
    short(0, begins=9)  # the second rollout
    settings = {**_SMALL, "env": "CartPole-v1", "runs_dir": str(tmp_path), "run_name": "a"}
    with pytest.raises(
        MemoryShortError, match=r"an update with 1 rows at once .*7\.78 GiB"
    ) as told:
        train(resolve({**settings, "checkpoint_every": 1_000_000}))
    assert "Fewer are not possible" in str(told.value)
    assert "network_arch" in str(told.value)
    assert json.loads((tmp_path / "a" / "status.json").read_text())["state"] == "failed"
    _, saved = checkpoints.load_newest(tmp_path / "a" / "checkpoints")
    assert saved.state["counters"]["env_steps"] == 96


@pytest.mark.parametrize("env", ["CartPole-v1", "tensor/CartPole-v1"])
def test_judging_a_rollout_takes_fewer_rows_at_once_too(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollouts(most: int) -> list[Tensor]:
        parts = parts_of(env=env, pool="auto", micro_batch=8)
        plain, judged = parts.policy.value, []

        def value(obs: Any) -> Tensor:
            if len(next(iter(obs.values()))) > most:
                raise torch.OutOfMemoryError(_FOUND)
            return plain(obs)

        monkeypatch.setattr(parts.policy, "value", value)
        storage = parts.collector.collect()
        parts.lesson(storage)
        rollout = memory.judged(storage, parts.policy, parts.collector.version)
        judged += [rollout.value.clone(), rollout.final_value.clone(), rollout.last_value.clone()]
        judged += [p.detach().clone() for p in parts.policy.parameters()]
        assert storage.rows_at_once in (12, type(storage).rows_at_once)
        parts.close()
        return judged

    whole, parts = rollouts(10_000), rollouts(13)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    with pytest.raises(MemoryShortError, match="judging a rollout with 2 rows at once"):
        rollouts(1)


def test_a_compiled_step_that_runs_out_is_made_again_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"n_envs": 1, "n_steps": 16, "batch_size": 16, "timesteps": 32}
    expected = trained(parts_of(**settings))
    made, ran = learning.executable, []

    def executable(*given: Any) -> LossFunction:
        compiled = made(*given)

        def loss(parameters: Any, batch: Any, clip: Tensor) -> Loss:
            ran.append(len(batch.valid))
            found = compiled(parameters, batch, clip)
            if len(batch.valid) > 8:  # once it has been compiled for as many, and has run
                raise torch.OutOfMemoryError(_FOUND)
            return found

        return loss

    monkeypatch.setattr(learning, "executable", executable)
    with inductor.patch(compile_threads=1):
        tensors, metrics = trained(
            parts_of(**settings, executor="compile", compile_in="foreground")
        )
    assert ran == [16] + [8] * 12
    assert metrics["train/micro_batches"] == 2
    for name, value in expected[0].items():
        torch.testing.assert_close(tensors[name], value, rtol=1e-3, atol=1e-4)


def test_kernels_that_take_minibatches_whole_leave_a_run_in_parts_alone() -> None:
    given = {"env": "tensor/CartPole-v1", "pool": "auto", "micro_batch": 8}
    with pytest.raises(ConfigError, match="micro_batch is 8, and they take minibatches whole"):
        parts_of(**given, kernels="fused")
    parts_of(**given | {"micro_batch": 32}, kernels="fused").close()


def test_kernels_that_are_ready_do_not_take_over_a_run_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for micro_batch, taken in ((0, True), (8, False)):
        parts = parts_of(env="tensor/CartPole-v1", pool="auto", micro_batch=micro_batch)
        swap = Swap(parts, *[lambda way: pytest.fail("nothing is to be made")] * 2)
        monkeypatch.setattr(swap, "built", Built(lambda *given: None, as_it_is, 0.0))
        monkeypatch.setattr(swap, "take_over", lambda built: Decision("kernels", "fused", ""))
        assert (swap.consider() is not None) == taken
        parts.close()
