"""Rollout storage: every transition written is there once, in its place, and nothing is stale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.storage.staged import StagedStorage
from stoker.train.sizes import rollout_size
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
EVERYONE = slice(0, N)
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


def seen(spec: EnvSpec, mark: np.ndarray) -> dict[str, np.ndarray]:
    """Observations that bear these marks."""
    return {
        name: np.broadcast_to(
            mark.reshape(len(mark), *(1 for _ in leaf.shape)), (len(mark), *leaf.shape)
        ).astype(leaf.dtype)
        for name, leaf in spec.observation.items()
    }


def on_device(obs: dict[str, np.ndarray]) -> DeviceObs:
    return {name: torch.from_numpy(value) for name, value in obs.items()}


Index = int | slice | np.ndarray | Tensor


def decide(storage: StagedStorage, t: Index, place: Index, spec: EnvSpec, mark: np.ndarray) -> None:
    """What the policy sees and does bears these marks; its log-probability a quarter more."""
    dtype = np.float32 if spec.action.continuous else np.int64
    action = torch.from_numpy(np.repeat(mark[:, None], spec.action.width, axis=1).astype(dtype))
    mask = torch.from_numpy(bits(mark)) if spec.has_mask else None
    log_prob = torch.from_numpy(mark.astype(np.float32)) + 0.25
    obs = on_device(seen(spec, mark))
    storage.write_decision(t, place, obs, mask, PolicyOutput(action, log_prob))


def write(storage: StagedStorage, t: int, spec: EnvSpec, plus: int = 0) -> None:
    mark = marks(t) + plus
    decide(storage, t, EVERYONE, spec, mark)
    storage.write_outcome(t, outcome(spec, mark))


def outcome(spec: EnvSpec, mark: np.ndarray, env_ids: list[int] | None = None) -> StepBatch:
    """A batch with these marks; final observations bear 20 more."""
    return StepBatch(
        env_ids=np.arange(N) if env_ids is None else np.array(env_ids),
        obs={},
        reward=(mark + 0.75).astype(np.float32),
        terminated=mark % 2 == 0,
        truncated=mark % 3 == 1,
        final_obs=seen(spec, mark + 20),
        action_mask=None,
        valid=mark % 5 != 0,
        metrics={},
    )


class MarkReader:
    """V(obs): the mark that an observation bears, and a half. Counts the passes it makes."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.rows: list[int] = []
        self.appraised = 0

    def draw_noise(self, rows: int) -> Tensor:
        raise AssertionError

    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        raise AssertionError

    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        raise AssertionError

    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log-probability: 1,000 times the action, and how many of the mask are set."""
        self.appraised += len(action)
        free = torch.zeros(len(action)) if action_mask is None else action_mask.sum(1)
        return self.value(obs), 1000.0 * action[:, 0] + free

    def value(self, obs: DeviceObs) -> Tensor:
        leaf = next(iter(obs.values()))
        self.rows.append(len(leaf))
        return leaf.reshape(len(leaf), -1)[:, 0].to(torch.float32) + 0.5


def filled(spec: EnvSpec, storage: StagedStorage | None = None, plus: int = 0) -> Rollout:
    storage = storage or StagedStorage(spec, T, N, CPU)
    storage.begin(version=100 + plus)
    for t in range(T):
        write(storage, t, spec, plus)
    return ended(storage, spec)


def ended(storage: StagedStorage, spec: EnvSpec) -> Rollout:
    """The rollout as the policy that acted judges it."""
    storage.end(last_obs(spec))
    return storage.judged_by(MarkReader(), storage.version)


def last_obs(spec: EnvSpec) -> DeviceObs:
    """What the last step led to: the mark 7 for everyone."""
    return on_device(seen(spec, np.full(N, 7)))


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
@pytest.mark.parametrize("plus", [0, 8])
def test_every_transition_is_there_once_and_lines_up(spec: EnvSpec, plus: int) -> None:
    storage = StagedStorage(spec, T, N, CPU)
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
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    host, last = np.full((N, 7), 1.0, np.float32), np.full((N, 7), 3.0, np.float32)
    given = outcome(PLAIN_BOX, np.array([1, 7, 13]))  # all truncated
    output = PolicyOutput(torch.zeros(N, 4), torch.zeros(N))
    storage.begin(0)
    storage.write_decision(0, EVERYONE, {PLAIN: torch.from_numpy(host)}, None, output)
    storage.write_outcome(0, given)
    storage.end({PLAIN: torch.from_numpy(last)})
    host[:] = given.reward[:] = last[:] = given.final_obs[PLAIN][:] = 99.0
    output.log_prob[:] = output.action[:] = 99.0
    rollout = storage.judged_by(MarkReader(), 0)
    assert (rollout.obs[PLAIN][0] == 1.0).all()
    assert (rollout.reward[0] != 99.0).all()
    assert (rollout.last_value == 3.5).all()
    assert rollout.final_value[0].tolist() == [21.5, 27.5, 33.5]
    assert (rollout.action[0] == 0.0).all()
    assert (rollout.behaviour_log_prob[0] == 0.0).all()


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
def test_final_values_stand_where_episodes_were_truncated_and_nowhere_else(spec: EnvSpec) -> None:
    """Also where several steps' final observations are judged in one pass; none where invalid."""
    storage = StagedStorage(spec, T, N, CPU)
    rollout = filled(spec, storage)
    mark = torch.arange(T * N)
    bootstrapped = (mark % 3 == 1) & (mark % 5 != 0)
    assert bootstrapped.reshape(T, N).any(1).sum() > 2
    expected = torch.where(bootstrapped, mark + 20.5, 0.0).reshape(T, N)
    assert torch.equal(rollout.final_value, expected)
    # In a rollout without a truncation nothing is left of them.
    storage.begin(1)
    for t in range(T):
        write_step(storage, t, spec)
    assert (ended(storage, spec).final_value == 0).all()


def write_step(storage: StagedStorage, t: int, spec: EnvSpec) -> None:
    """A valid transition of everyone that ends no episode."""
    decide(storage, t, EVERYONE, spec, marks(t))
    storage.write_outcome(t, plain_outcome(spec, marks(t)))


def plain_outcome(
    spec: EnvSpec, mark: np.ndarray, env_ids: list[int] | None = None, **flags: np.ndarray
) -> StepBatch:
    never = np.zeros(len(mark), bool)
    quiet = {"terminated": never, "truncated": never, "valid": ~never}
    return outcome(spec, mark, env_ids)._replace(**(quiet | flags))


def test_final_observations_are_judged_in_one_pass_and_in_no_more_rows_than_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    storage.begin(0)
    for t in range(T):
        decide(storage, t, EVERYONE, PLAIN_BOX, marks(t))
        truncated = np.array([True, t % 2 == 0, False])
        storage.write_outcome(t, plain_outcome(PLAIN_BOX, marks(t), truncated=truncated))
    storage.end(last_obs(PLAIN_BOX))
    finals, values = 8, {}
    for at_once in (8192, finals, 3, 1):
        monkeypatch.setattr(StagedStorage, "rows_at_once", at_once)
        reader = MarkReader()
        values[at_once] = storage.judged_by(reader, 0).final_value.clone()
        passes = -(-finals // at_once)
        assert sum(reader.rows[-passes:]) == finals
        assert max(reader.rows[-passes:]) <= at_once
        assert reader.rows[-passes - 1] == N  # what came before them was the last observation
    expected = torch.zeros(T, N)
    for t, n in [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1)]:
        expected[t, n] = t * N + n + 20.5
    for found in values.values():
        assert torch.equal(found, expected)


@pytest.mark.parametrize("version", [100, 101], ids=["in step", "late"])
def test_values_do_not_depend_on_how_many_rows_are_judged_at_once(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StagedStorage(DICT, T, N, CPU)
    filled(DICT, storage)
    whole = storage.judged_by(MarkReader(), version)
    value, log_prob = whole.value.clone(), whole.log_prob.clone()
    for rows in (1, N, 2 * N + 1, 3 * N):
        monkeypatch.setattr(StagedStorage, "rows_at_once", rows)
        whole.value.zero_()
        judged = storage.judged_by(MarkReader(), version)
        assert torch.equal(judged.value, value)
        assert torch.equal(judged.log_prob, log_prob)


def test_the_version_that_acted_is_judged_by_its_own_log_probabilities() -> None:
    """Those that it acted with, to the bit, without asking it again."""
    storage, reader = StagedStorage(DICT, T, N, CPU), MarkReader()
    filled(DICT, storage)
    rollout = storage.judged_by(reader, 100)
    assert torch.equal(rollout.log_prob, rollout.behaviour_log_prob)
    assert reader.appraised == 0


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
def test_another_version_is_asked_for_the_log_probability_of_what_was_done(spec: EnvSpec) -> None:
    storage, reader = StagedStorage(spec, T, N, CPU), MarkReader()
    in_step = filled(spec, storage)
    value, final_value = in_step.value.clone(), in_step.final_value.clone()
    rollout = storage.judged_by(reader, 101)
    mark = np.arange(T * N)
    free = bits(mark).sum(1) if spec.has_mask else 0
    found = rollout.log_prob.flatten().numpy()
    np.testing.assert_array_equal(found, (1000.0 * mark + free).astype(np.float32))
    np.testing.assert_array_equal(rollout.behaviour_log_prob.flatten(), mark + 0.25)
    assert (rollout.policy_version == 100).all()
    assert torch.equal(rollout.value, value)
    assert torch.equal(rollout.final_value, final_value)
    assert reader.appraised == T * N


def test_a_row_without_an_outcome_is_a_gap() -> None:
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    filled(PLAIN_BOX, storage)  # a rollout before, of which nothing may be left
    storage.begin(1)
    for t in range(T):
        decide(storage, t, EVERYONE, PLAIN_BOX, marks(t))
        here = [n for n in range(N) if (t, n) not in ((1, 0), (1, 2), (4, 1))]
        steps = np.full(len(here), t)
        storage.write_outcome(steps, plain_outcome(PLAIN_BOX, marks(t)[here], here))
    rollout = ended(storage, PLAIN_BOX)
    gaps = [(1, 0), (1, 2), (4, 1)]
    for t, n in np.ndindex(T, N):
        assert rollout.valid[t, n] == ((t, n) not in gaps)
        assert rollout.reward[t, n] == (0.0 if (t, n) in gaps else t * N + n + 0.75)
    assert not rollout.truncated.any()
    assert not rollout.terminated.any()
    assert storage.steps_taken == T * N - 3


def test_steps_taken_are_the_rows_that_are_transitions() -> None:
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    filled(PLAIN_BOX, storage)
    assert storage.steps_taken == sum(mark % 5 != 0 for mark in range(T * N))
    storage.begin(1)
    assert storage.steps_taken == 0


def test_outcomes_are_written_to_the_step_of_each_environment() -> None:
    """Environment 2 comes back at step 3 with what came of step 1; final values go there too."""
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    storage.begin(0)
    for t in range(T):
        decide(storage, t, EVERYONE, PLAIN_BOX, marks(t))
    steps, envs = np.array([1, 3, 0]), [2, 0, 1]
    truncated = np.array([True, False, True])
    storage.write_outcome(
        steps, plain_outcome(PLAIN_BOX, steps * N + envs, envs, truncated=truncated)
    )
    rollout = ended(storage, PLAIN_BOX)
    written = dict(zip([(1, 2), (3, 0), (0, 1)], truncated, strict=True))
    for t, n in np.ndindex(T, N):
        mark, there, cut = t * N + n, (t, n) in written, written.get((t, n), False)
        assert rollout.valid[t, n] == there
        assert rollout.reward[t, n] == (mark + 0.75 if there else 0.0)
        assert rollout.truncated[t, n] == cut
        assert rollout.final_value[t, n] == (mark + 20.5 if cut else 0.0)


def test_outcomes_in_ranges_or_in_another_order_go_to_the_environments_they_name() -> None:
    ranges, mixed = (StagedStorage(PLAIN_BOX, T, N, CPU) for _ in range(2))
    for storage in (ranges, mixed):
        storage.begin(100)
    order = [2, 0, 1]
    for t in range(T):
        for storage in (ranges, mixed):
            decide(storage, t, EVERYONE, PLAIN_BOX, marks(t))
        for group in ([1, 2], [0]):
            ranges.write_outcome(t, outcome(PLAIN_BOX, marks(t)[group], group))
        mixed.write_outcome(np.full(N, t), outcome(PLAIN_BOX, marks(t)[order], order))
    expected = filled(PLAIN_BOX)
    for storage in (ranges, mixed):
        check_same(ended(storage, PLAIN_BOX), expected)


def check_same(first: Rollout, second: Rollout) -> None:
    for mine, theirs in zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)


def test_a_cut_is_truncated_not_valid_and_bootstraps_from_nothing() -> None:
    storage = StagedStorage(PLAIN_BOX, T, N, CPU)
    storage.begin(0)
    for t in range(T):
        decide(storage, t, EVERYONE, PLAIN_BOX, marks(t))
        if t < 2:
            storage.write_outcome(t, plain_outcome(PLAIN_BOX, marks(t)))
    storage.cut(np.array([2, 4]), np.array([1, 0]))
    rollout = ended(storage, PLAIN_BOX)
    cut = torch.zeros(T, N, dtype=torch.bool)
    cut[2, 1] = cut[4, 0] = True
    assert torch.equal(rollout.truncated, cut)
    assert not (rollout.valid & cut).any()
    assert not rollout.terminated.any()
    assert (rollout.final_value == 0).all()
    # What the policy saw there is known, and so is what it is worth.
    assert rollout.value[2, 1] == 2 * N + 1.5
    # The next rollout knows nothing of it.
    assert not filled_quietly(storage).truncated.any()


def filled_quietly(storage: StagedStorage) -> Rollout:
    storage.begin(1)
    for t in range(T):
        write_step(storage, t, PLAIN_BOX)
    return ended(storage, PLAIN_BOX)


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["host", "device"])
def test_decisions_of_groups_and_with_a_step_each_are_those_of_all_with_a_number(
    spec: EnvSpec, kind: Callable[[list[int]], Index]
) -> None:
    """Each at its own pace, in any order; a captured write takes its steps from the device."""
    whole, groups, each = (StagedStorage(spec, T, N, CPU) for _ in range(3))
    for storage in (whole, groups, each):
        storage.begin(0)
    for t in range(T):
        decide(whole, t, EVERYONE, spec, marks(t))
        for group in (slice(0, 1), slice(1, N)):
            decide(groups, t, group, spec, marks(t)[group])
    for t in range(T + 2):  # environments 2, 0 and 1 are one step behind each other
        there = [(t - behind, env) for behind, env in enumerate((2, 0, 1)) if 0 <= t - behind < T]
        steps, envs = [step for step, _ in there], [env for _, env in there]
        mark = np.array(steps) * N + np.array(envs)
        decide(each, kind(steps), kind(envs), spec, mark)
    expected = ended(whole, spec)
    check_same(ended(groups, spec), expected)
    check_same(ended(each, spec), expected)


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
def test_decisions_that_are_not_wanted_go_after_the_last_row_and_are_nowhere(spec: EnvSpec) -> None:
    """A captured write is always of everyone."""
    wanted, everyone = (StagedStorage(spec, T, N, CPU) for _ in range(2))
    for storage in (wanted, everyone):
        storage.begin(0)
    for t in range(T):
        for env in range(N):
            decide(wanted, t, slice(env, env + 1), spec, marks(t)[env : env + 1])
            steps = torch.full((N,), T)
            steps[env] = t
            mark = np.where(np.arange(N) == env, marks(t), 50)
            decide(everyone, steps, torch.arange(N), spec, mark)
    check_same(ended(everyone, spec), ended(wanted, spec))
    assert ended(everyone, spec).action.shape[:2] == (T, N)


@pytest.mark.parametrize("spec", [DICT, PLAIN_BOX], ids=["dict", "plain"])
def test_size_is_what_is_allocated(spec: EnvSpec) -> None:
    storage = StagedStorage(spec, T, N, CPU)
    filled(spec, storage)
    rollout = storage.judged_by(MarkReader(), 101)
    tensors = [*rollout.obs.values(), *(x for x in rollout if isinstance(x, Tensor))]
    tensors += last_obs(spec).values()  # of which the storage keeps a copy
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    assert rollout_size(spec, T, N) == allocated


@pytest.mark.parametrize(
    ("action", "dtype"), [(DISCRETE, torch.int64), (BOX, torch.float32)], ids=["discrete", "box"]
)
def test_types_are_those_of_the_spaces(action: ActionSpec, dtype: torch.dtype) -> None:
    spec = EnvSpec("x", LEAVES, action)
    rollout = filled(spec)
    assert rollout.action.dtype == dtype
    assert [leaf.dtype for leaf in rollout.obs.values()] == [
        torch.float32,
        torch.float32,
        torch.uint8,
        torch.int64,
    ]
