"""Rollout storage: every transition written is there once, in its place, and nothing is stale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stoker.storage.rollout import RolloutStorage
from stoker.types import (
    PLAIN,
    ActionSpec,
    DeviceObs,
    EnvSpec,
    LeafSpec,
    PolicyOutput,
    Rollout,
    StepBatch,
)

T, N = 5, 3
CPU = torch.device("cpu")
DISCRETE = ActionSpec("discrete", (), "int64", (6,), (0,))
BOX = ActionSpec("box", (2, 2), "float32", low=(-1,) * 4, high=(1,) * 4)
LEAVES = {
    "vector": LeafSpec("vector", (2,), "float32"),
    "scalar": LeafSpec("vector", (), "float32"),
    "image": LeafSpec("image", (4, 5), "uint8"),
    "kind": LeafSpec("discrete", (), "int64", n=9),
}
DICT = EnvSpec("dict", LEAVES, DISCRETE, has_mask=True)
PLAIN_BOX = EnvSpec("plain", {PLAIN: LeafSpec("vector", (7,), "float32")}, BOX)


def marks(t: int) -> np.ndarray:
    """What step t of each environment is filled with: t * N + n."""
    return t * N + np.arange(N)


def bits(marks: np.ndarray) -> np.ndarray:
    """Marks as rows of six flags."""
    return (marks[:, None] >> np.arange(6)) % 2 == 1


def write(storage: RolloutStorage, t: int, spec: EnvSpec, plus: int = 0) -> None:
    mark = marks(t) + plus
    number = torch.from_numpy(mark.astype(np.float32))
    obs = {
        name: torch.from_numpy(
            np.broadcast_to(mark.reshape(N, *(1 for _ in leaf.shape)), (N, *leaf.shape)).astype(
                leaf.dtype
            )
        )
        for name, leaf in spec.observation.items()
    }
    action = torch.from_numpy(np.repeat(mark[:, None], spec.action.width, axis=1))
    mask = torch.from_numpy(bits(mark)) if spec.has_mask else None
    storage.write_decision(t, obs, mask, PolicyOutput(action, number + 0.25))
    storage.write_outcome(t, batch(mark))


def batch(mark: np.ndarray) -> StepBatch:
    return StepBatch(
        env_ids=np.arange(N),
        obs={},
        reward=(mark + 0.75).astype(np.float32),
        terminated=mark % 2 == 0,
        truncated=mark % 3 == 1,
        final_obs={},
        action_mask=None,
        valid=mark % 5 != 0,
        metrics={},
    )


def filled(spec: EnvSpec, storage: RolloutStorage | None = None, plus: int = 0) -> Rollout:
    storage = storage or RolloutStorage(spec, T, N, CPU)
    storage.begin(version=100 + plus)
    for t in range(T):
        write(storage, t, spec, plus)
    return storage.finish(half_more, last_obs(spec))


def half_more(obs: DeviceObs) -> Tensor:
    """V(obs): the mark that an observation bears, and a half."""
    leaf = next(iter(obs.values()))
    return leaf.reshape(len(leaf), -1)[:, 0].to(torch.float32) + 0.5


def last_obs(spec: EnvSpec) -> DeviceObs:
    """What the last step led to: the mark 7 for everyone."""
    return {
        name: torch.full((N, *leaf.shape), 7, dtype=getattr(torch, leaf.dtype))
        for name, leaf in spec.observation.items()
    }


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
@pytest.mark.parametrize("plus", [0, 8])
def test_every_transition_is_there_once_and_lines_up(spec: EnvSpec, plus: int) -> None:
    storage = RolloutStorage(spec, T, N, CPU)
    if plus:
        filled(spec, storage)  # a rollout before, of which nothing may be left
    rollout = filled(spec, storage, plus)
    mark = torch.arange(plus, plus + T * N)

    def check(found: Tensor, expected: Tensor) -> None:
        rows = found.flatten(0, 1).to(torch.float64)
        expected = expected.to(torch.float64).reshape(T * N, *[1] * (rows.dim() - 1))
        torch.testing.assert_close(rows, expected.expand_as(rows))

    for leaf in rollout.obs.values():
        check(leaf, mark)
    check(rollout.action, mark)
    check(rollout.behaviour_log_prob, mark + 0.25)
    check(rollout.value, mark + 0.5)
    check(rollout.reward, mark + 0.75)
    check(rollout.terminated, mark % 2 == 0)
    check(rollout.truncated, mark % 3 == 1)
    check(rollout.valid, mark % 5 != 0)
    check(rollout.policy_version, torch.full((T * N,), 100 + plus))
    assert (rollout.last_value == 7.5).all()
    if spec.has_mask:
        assert rollout.action_mask is not None
        assert torch.equal(rollout.action_mask.flatten(0, 1), torch.from_numpy(bits(mark.numpy())))
    else:
        assert rollout.action_mask is None


def test_the_rollout_keeps_no_hold_of_what_it_was_given() -> None:
    """Pools overwrite their rows in the next step."""
    storage = RolloutStorage(PLAIN_BOX, T, N, CPU)
    host = np.full((N, 7), 1.0, np.float32)
    given = batch(marks(0))
    output = PolicyOutput(torch.zeros(N, 4), torch.zeros(N))
    storage.begin(0)
    storage.write_decision(0, {PLAIN: torch.from_numpy(host)}, None, output)
    storage.write_outcome(0, given)
    host[:] = given.reward[:] = 99.0
    rollout = storage.finish(half_more, last_obs(PLAIN_BOX))
    assert (rollout.obs[PLAIN][0] == 1.0).all()
    assert (rollout.reward[0] != 99.0).all()


def test_final_values_stand_where_episodes_were_truncated_and_nowhere_else() -> None:
    storage = RolloutStorage(PLAIN_BOX, T, N, CPU)
    storage.begin(0)
    for t in range(T):
        write(storage, t, PLAIN_BOX)
    truncated = np.array([False, True, False])
    storage.write_final_value(3, truncated, torch.tensor([10.0, 20.0, float("nan")]))
    expected = torch.zeros(T, N)
    expected[3, 1] = 20.0
    assert torch.equal(storage.finish(half_more, last_obs(PLAIN_BOX)).final_value, expected)
    assert (filled(PLAIN_BOX, storage).final_value == 0).all()


def test_values_do_not_depend_on_how_many_rows_are_judged_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = filled(PLAIN_BOX).value.clone()
    for rows in (1, N, 2 * N + 1, 3 * N):
        monkeypatch.setattr("stoker.storage.rollout._VALUE_ROWS", rows)
        assert torch.equal(filled(PLAIN_BOX).value, whole)


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
def test_size_is_what_is_allocated(spec: EnvSpec) -> None:
    rollout = filled(spec)
    tensors = [*rollout.obs.values(), *(x for x in rollout if isinstance(x, Tensor))]
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    assert RolloutStorage.size(spec, T, N) == allocated


@pytest.mark.parametrize(
    ("action", "dtype"), [(DISCRETE, torch.int64), (BOX, torch.float32)], ids=["discrete", "box"]
)
def test_types_are_those_of_the_spaces(action: ActionSpec, dtype: torch.dtype) -> None:
    spec = EnvSpec("x", LEAVES, action)
    rollout = RolloutStorage(spec, T, N, CPU).finish(half_more, last_obs(spec))
    assert rollout.action.dtype == dtype
    assert [leaf.dtype for leaf in rollout.obs.values()] == [
        torch.float32,
        torch.float32,
        torch.uint8,
        torch.int64,
    ]
