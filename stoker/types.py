"""The named records that cross rooms, with their shapes, and the protocols between them.

Shapes: N environments, T steps of a rollout, B rows of a minibatch, A action columns,
M action-mask columns. An observation is always a dict of leaves; a plain (non-Dict) space has
the one leaf `PLAIN`. Host records hold NumPy arrays, device records hold torch tensors.

This file is imported by environment workers, so it must never import torch at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Generator, Tensor

PLAIN = "obs"
"""The leaf name of an observation space that is not a Dict."""

HostObs = dict[str, np.ndarray]
DeviceObs = dict[str, "Tensor"]


@dataclass(frozen=True)
class LeafSpec:
    """One observation leaf: a vector, a uint8 image, or a category."""

    kind: Literal["vector", "image", "discrete"]
    shape: tuple[int, ...]
    dtype: str
    n: int = 0
    """How many categories, for a discrete leaf."""
    start: int = 0
    """The smallest category, for a discrete leaf."""
    channels_last: bool = True
    """Where an image keeps its channels."""
    low: tuple[float, ...] = field(default=(), compare=False)
    """What a vector leaf may not fall below: one number for all of it, or one each; empty where
    unbounded. Bounds are checked when environments step; they are no part of what a network is."""
    high: tuple[float, ...] = field(default=(), compare=False)
    """What a vector leaf may not exceed, likewise."""


@dataclass(frozen=True)
class ActionSpec:
    """What the policy must put out. Actions are stored as rows of `width` columns."""

    kind: Literal["discrete", "multi_discrete", "multi_binary", "box"]
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    """Choices for each column of a discrete or multi-discrete action."""
    start: tuple[int, ...] = ()
    """The environment's number for choice 0 of each column."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """A, the number of stored columns."""
        return len(self.nvec) if self.nvec else int(np.prod(self.shape))

    @property
    def continuous(self) -> bool:
        return self.kind == "box"

    @property
    def stored_dtype(self) -> str:
        """Of the columns: what the policy puts out, which the pool turns into the environment's."""
        return "float32" if self.continuous else "int64"


@dataclass(frozen=True)
class EnvSpec:
    """What an environment looks like to the rest of the house."""

    name: str
    observation: Mapping[str, LeafSpec]
    action: ActionSpec
    has_mask: bool = False
    metric_names: tuple[str, ...] = ()
    """Names the environment declares in `metric_names` and reports in `info["metrics"]`."""

    @property
    def mask_width(self) -> int:
        """M, the number of action-mask columns (0: the environment masks nothing)."""
        return sum(self.action.nvec) if self.has_mask else 0


class StepBatch(NamedTuple):
    """What a pool gives back for n of its environments, by row.

    Auto-reset is same-step: where an episode ended, `obs` is already the next one's first
    observation and `final_obs` the last of the one that ended (elsewhere `final_obs` is
    meaningless). `terminated` and `truncated` are never merged; where both are set, terminated
    wins. `valid` is False for a row that is no transition: truncated, if a fault cut the episode
    off; else the step led nowhere (a foreign vector environment spent it on a reset). Arrays may
    be views that the next `send` to those environments overwrites: copy what you keep.
    """

    env_ids: np.ndarray  # int64 [n]
    obs: HostObs  # [n, ...]
    reward: np.ndarray  # float32 [n]
    terminated: np.ndarray  # bool [n]
    truncated: np.ndarray  # bool [n]
    final_obs: HostObs  # [n, ...]
    action_mask: np.ndarray | None  # bool [n, M]
    valid: np.ndarray  # bool [n]
    metrics: Mapping[str, np.ndarray]  # float32 [n] each

    def rows(self, which: np.ndarray) -> StepBatch:
        """Some of the rows, copied, in the order that `which` says."""
        return StepBatch(*(_mapped(lambda field: field[which], value) for value in self))

    def joined(self, other: StepBatch) -> StepBatch:
        """The rows of both, in the order of their environments."""
        pairs = zip(self, other, strict=True)
        both = StepBatch(*(_mapped(lambda *of: np.concatenate(of), *pair) for pair in pairs))
        return both.rows(np.argsort(both.env_ids))


def _mapped(function: Callable[..., Any], *fields: Any) -> Any:
    """`function` of a record's fields, which are arrays or tensors, these by name, or None."""
    first = fields[0]
    if isinstance(first, Mapping):
        return {name: function(*(field[name] for field in fields)) for name in first}
    return None if first is None else function(*fields)


class EpisodeJournal(NamedTuple):
    """How to bring environments back to where they stood: reset to a seed, replay the actions.

    Every episode is reset with a seed of its own, so (episode, actions so far) is the whole state
    of a deterministic environment. `length` is -1 where the episode grew too long to keep.
    """

    episode: np.ndarray  # int64 [N], which episode each environment is in
    length: np.ndarray  # int64 [N], actions taken in it
    actions: np.ndarray  # [L, N, A], policy actions, L the longest of them


class PolicyOutput(NamedTuple):
    """What acting gives: an action to take and what the learner must remember of it.

    Values are not among it: a whole rollout's are computed at once, when it is full.
    """

    action: Tensor  # [N, A]
    log_prob: Tensor  # [N]


class Rollout(NamedTuple):
    """T steps of N environments on the device, judged by the policy that is to learn from them.

    A row that is not valid is either a cut (truncated: the policy saw its observation, and what
    came of it is not known) or a gap (not truncated: there was no step; its neighbours in time
    are neighbours of each other).
    """

    obs: DeviceObs  # [T, N, ...]
    action: Tensor  # [T, N, A]
    action_mask: Tensor | None  # bool [T, N, M]
    behaviour_log_prob: Tensor  # [T, N], of the policy that acted
    policy_version: Tensor  # int64 [T, N], of the policy that acted
    log_prob: Tensor  # [T, N], of the policy that learning begins with
    value: Tensor  # [T, N]
    reward: Tensor  # [T, N]
    terminated: Tensor  # bool [T, N]
    truncated: Tensor  # bool [T, N], False where terminated
    final_value: Tensor  # [T, N], V(final_obs) where truncated, else 0
    valid: Tensor  # bool [T, N]
    last_value: Tensor  # [N], V of the observation after the last step
    chosen: Tensor | None  # int64 [R], the T * N rows to learn from, in order; None: all

    def first(self, steps: int, chosen: Tensor | None) -> Rollout:
        """The first steps, of every field, and which of their rows to learn from."""
        cut = Rollout(*(_mapped(lambda field: field[:steps], value) for value in self))
        return cut._replace(last_value=self.last_value, chosen=chosen)


class Finals(NamedTuple):
    """What was seen at the end of truncated episodes of a rollout."""

    place: Tensor  # int64 [F], rows of the rollout, t * N + n; those of other rows do not count
    obs: DeviceObs  # [F, ...]


class Transitions(NamedTuple):
    """B rows of a replay, and what became of each within n steps."""

    obs: DeviceObs  # [2 * B, ...]: what was seen, then what was seen at the end
    action: Tensor  # int64 [B, A]
    next_mask: Tensor | None  # bool [B, M], of what was allowed at the end
    reward: Tensor  # [B], the discounted sum until then
    discount: Tensor  # [B], of what is seen at the end; 0 where the episode terminated
    weight: Tensor  # [B], how much each counts


class Minibatch(NamedTuple):
    """B shuffled rows of a rollout with what the loss needs."""

    obs: DeviceObs  # [B, ...]
    action: Tensor  # [B, A]
    action_mask: Tensor | None  # bool [B, M]
    log_prob: Tensor  # [B], of the policy that learning begins with
    importance: Tensor  # [B], how much likelier that policy takes the action than the one that did
    value: Tensor  # [B]
    advantage: Tensor  # [B]
    value_target: Tensor  # [B]
    valid: Tensor  # bool [B]

    def take(self, index: Tensor | slice) -> Minibatch:
        """The rows that `index` names, of every field; of a slice, views."""
        return Minibatch(*(_mapped(lambda field: field[index], value) for value in self))


class Loss(NamedTuple):
    """A scalar to descend, and what to report of it, as means over the valid rows; on the device.

    So that of a minibatch is the sum of its parts', weighted by their shares of the valid rows.
    """

    total: Tensor
    approx_kl: Tensor
    metrics: dict[str, Tensor]


class QLoss(NamedTuple):
    """A scalar to descend, what to report of it, and each row's error; on the device."""

    total: Tensor
    error: Tensor  # [B], for priorities
    metrics: dict[str, Tensor]


class Prepared(NamedTuple):
    """A rollout's rows with advantages and targets, in time-major order, and its metrics."""

    rows: Minibatch
    metrics: dict[str, Tensor]


Prepare = Callable[[Rollout], Prepared]

Normalise = Callable[["Tensor", "Tensor"], "Tensor"]
"""The advantages of a minibatch and which rows are valid, to the advantages to learn from."""

LossFunction = Callable[[Mapping[str, "Tensor"], Minibatch, "Tensor"], Loss]
"""Parameters by name, a minibatch and the clip range, to a loss: a pure function of tensors."""


F = TypeVar("F", bound=Callable[..., Any])


class Way(Protocol):
    """How to run a function that reads tensors and changes some in place: compiled, say."""

    def __call__(self, function: F) -> F: ...


def as_it_is(function: F) -> F:
    """The `Way` that builds at once."""
    return function


class LearnReport(NamedTuple):
    """What came of learning from one rollout; tensors on the device."""

    metrics: dict[str, Tensor]  # means over the updates that were made
    skipped: Tensor  # updates not made because a loss or gradient was not finite


class Stretch(NamedTuple):
    """Some of a run's time: what its threads did in it, and what the machine did."""

    at: float  # seconds of training before it
    seconds: float  # that it took
    threads: Mapping[str, Mapping[str, float]]  # by thread, seconds of each phase
    gpu: Mapping[str, float]  # means of what is known, by the names of `monitor.records`
    host: Mapping[str, float]


class Policy(Protocol):
    """What the collector needs of a policy. Noise comes in as a tensor, so acting is pure."""

    @property
    def generator(self) -> Generator:
        """Where `draw_noise` gets it from."""

    def draw_noise(self, rows: int) -> Tensor: ...

    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput: ...

    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor: ...

    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """V(obs) and the log-probability of `action`, [n] each."""

    def value(self, obs: DeviceObs) -> Tensor: ...


class Pool(Protocol):
    """N environments that step when told to. `step` is `send` and `recv` in one."""

    spec: EnvSpec
    n_envs: int
    groups: tuple[slice, ...]
    """Ranges of environments that alternate: one is thought about while another steps."""
    handful: int
    """How many are worth acting for at once, so that nobody who steps runs out of work."""
    patience: float
    """Seconds after which fewer are, too."""
    memory: Any
    """The block that observations are views of, for whoever wants to pin it; None where there is
    none that lasts."""

    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment, or bring each back to where `journal` says it stood.

        Rows whose environment could not be brought back start a new episode and are not `valid`.
        """

    @property
    def seen(self) -> tuple[HostObs, np.ndarray | None]:
        """What every environment sees, [N, ...], and its action mask: views that change with it."""

    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None: ...

    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """Those that are done of the environments `among` (of all), once `at_least` of them are.

        After `patience` seconds it returns those that are done, be they fewer, or none.
        """

    def step(self, actions: np.ndarray) -> StepBatch: ...

    def faults(self) -> dict[str, int]:
        """How often each kind of fault was mended so far, by name."""

    def close(self) -> None: ...


class Rng(Protocol):
    """Random numbers for n environments: every call within a step gives others, [n, *tail].

    What a row gets follows from its environment, the step and the call alone, whatever else is in
    the batch, on whatever device.
    """

    def uniform(self, *tail: int) -> Tensor:
        """From 0 to 1, float32, never 1."""

    def normal(self, *tail: int) -> Tensor:
        """Of mean 0 and deviation 1, float32."""


TensorState = dict[str, "Tensor"]
"""What a tensor environment remembers: by name, tensors [n, ...]."""


class TensorStep(NamedTuple):
    """What came of a step of n tensor environments."""

    state: TensorState
    reward: Tensor  # float32 [n]
    terminated: Tensor  # bool [n]
    truncated: Tensor  # bool [n]
    metrics: dict[str, Tensor] = {}  # float32 [n] each, the names that `metric_names` declares


class TensorBatch(NamedTuple):
    """What came of a step of all N environments of a tensor pool: a `StepBatch` on the device."""

    obs: DeviceObs  # [N, ...]
    reward: Tensor  # float32 [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N], False where terminated
    final_obs: DeviceObs  # [N, ...], everywhere what the step led to
    metrics: dict[str, Tensor]  # float32 [N] each


class TensorEnv(Protocol):
    """Environments as a tensor program, n of them at once; an object of it holds no state.

    Shapes are fixed, and nothing on the way depends on a value in Python: no `if` on a tensor, no
    `.item()`, no index that selects by a mask; `torch.where` instead. Whoever calls resets: where
    an episode is over, rows of `initial` take the place of the rows of `state`.
    """

    observation_space: Any
    """Gymnasium's, of one environment."""
    action_space: Any

    def initial(self, n: int, rng: Rng) -> TensorState:
        """The beginnings of n episodes."""

    def observe(self, state: TensorState) -> Tensor | DeviceObs:
        """What n agents see: [n, ...], or by name for a Dict space."""

    def step(self, state: TensorState, action: Tensor, rng: Rng) -> TensorStep:
        """One step. `action` is as the action space has it: [n] for Discrete, else [n, ...]."""


class DeviceVectorEnv(Protocol):
    """Many environments that step together on a device, with tensors in and out: Isaac Lab's shape.

    It has `single_observation_space` and `single_action_space`, or `observation_space` and
    `action_space` of one environment, and resets by itself in the step that ends an episode.
    Observations are a tensor [N, ...] or tensors by name, of which `"policy"` is taken if there.
    """

    @property
    def num_envs(self) -> int: ...

    @property
    def device(self) -> Any: ...

    def reset(self) -> Any:
        """(observation, extras), or the observation alone. It may take a `seed`."""

    def step(self, actions: Any) -> Any:
        """(observation, reward, terminated, truncated, extras), all of which are tensors [N, ...]
        but the last, a dict; or (observation, reward, dones, extras), with those that were cut
        short in `extras["time_outs"]`. What ended episodes saw last may be `extras["final_obs"]`,
        [N, ...], as far as they ended."""


class Clock(Protocol):
    """Times named phases; `monitor.PhaseClock` is the one that ships."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...
