"""Small actor-critics, K of them side by side, each pass over them in one kernel.

An agent's parameters are one row of a flat buffer [K, P], each parameter as torch lays it out. An
agent has n environments and a rollout T steps: what happened to environment i of agent k in step t
is memory row (t * K + k) * n + i, so that what is stored is [T, K * n, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from stoker.kernels import heads, linear
from stoker.kernels.linear import Activation, Precision

Moments = tuple[Tensor, Tensor]
"""Centre and scale of observations, [K, inputs] each."""

CLIP = 10.0
"""Standardised observations are cut off here, as `nn.normalise` has it."""
MEASURED = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
PRECISIONS = ("fp32", "tf32", "bf16")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "silu": F.silu,
}

_MOST_INPUTS = 256
MOST_HIDDEN = 128
_MOST_OUTPUTS = 64
DEEPEST = 4
_PART_ROWS = 64  # fewer would leave a tile unfilled
_PARTS_A_CORE = 1


class Net(NamedTuple):
    """What an actor-critic looks like, and where its parameters lie in a row of the buffer."""

    inputs: int
    hidden: tuple[int, ...]
    """Widths of a trunk's layers; without any, actor and critic are a layer each on features."""
    activation: Activation
    head: str
    """One of `heads.HEADS`."""
    nvec: tuple[int, ...]
    """Choices for each column of a categorical head, else empty."""
    outputs: int
    """Width of the actor's raw output."""
    shared: bool
    """The critic uses the actor's trunk."""
    actor: tuple[tuple[int, int], ...]
    """Where the weight and the bias of each hidden layer begin; see `gradient` for none."""
    critic: tuple[tuple[int, int], ...]
    decide: tuple[int, int]
    judge: tuple[int, int]
    log_std: int
    """-1 where there is none."""
    size: int
    """P, the length of a row."""

    @property
    def columns(self) -> int:
        """A, the number of stored action columns."""
        return len(self.nvec) if self.nvec else self.outputs


class Rows(NamedTuple):
    """What was stored of a rollout's R = T * K * n rows."""

    obs: Tensor  # [R, inputs]; without hidden layers, features [1 or 2, K * B, inputs] of the batch
    action: Tensor  # [R, A]
    log_prob: Tensor  # [R]
    advantage: Tensor  # [R]
    value: Tensor  # [R]


class PpoTerms(NamedTuple):
    """The weights and limits of PPO's loss, each agent's own where they are tensors."""

    clip: Tensor  # [K]
    entropy: Tensor  # [K]
    value: Tensor  # [K]
    clip_value: float | None
    normalize: bool


def layout(
    names_and_shapes: Iterable[tuple[str, torch.Size]],
    inputs: int,
    hidden: tuple[int, ...],
    activation: Activation,
    head: str,
    nvec: tuple[int, ...],
    outputs: int,
    shared: bool,
) -> Net:
    """The net of an `ActorCritic`, given its parameters in the order of the flat buffer."""
    places: dict[str, int] = {}
    size = 0
    for name, shape in names_and_shapes:
        places[name] = size
        size += shape.numel()

    def linear(name: str) -> tuple[int, int]:
        return places[f"{name}.weight"], places[f"{name}.bias"]

    def trunk(name: str) -> tuple[tuple[int, int], ...]:
        return tuple(linear(f"{name}.trunk.{2 * i}") for i in range(len(hidden)))

    actor = trunk("actor")
    return Net(
        inputs,
        hidden,
        activation,
        head,
        nvec,
        outputs,
        shared,
        actor=actor,
        critic=actor if shared else trunk("critic"),
        decide=linear("decide"),
        judge=linear("judge"),
        log_std=places.get("head.log_std", -1),
        size=size,
    )


def fits(net: Net) -> bool:
    """Whether the kernels take this net: small enough to stay on the chip throughout a pass."""
    return (
        net.inputs <= _MOST_INPUTS
        and len(net.hidden) <= DEEPEST
        and all(width <= MOST_HIDDEN for width in net.hidden)
        and net.outputs <= _MOST_OUTPUTS
        and net.activation in ACTIVATIONS
        and net.head in heads.HEADS
    )


def parts(agents: int, batch: int, device: torch.device) -> int:
    """Into how many parts, S, to divide the `gradient` of `batch` rows of each agent."""
    if device.type == "cpu":
        return 1
    chip = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(-(-batch // _PART_ROWS), _PARTS_A_CORE * chip // agents))


def act(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    noise: Tensor,
    action: Tensor,
    log_prob: Tensor,
    precision: Precision = "fp32",
) -> None:
    """Draw an `action` [K * n, A] for every row of `obs` [K * n, inputs], and its `log_prob`.

    `noise` is what the head draws for so many rows; `action` and `log_prob` [K * n] are written.
    """
    if flat.is_cuda:
        from stoker.kernels import mlp_on_gpu

        mlp_on_gpu.act(net, flat, moments, obs, noise, action, log_prob, precision)
    else:
        act_twin(net, flat, moments, obs, noise, action, log_prob)


def value(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    wanted: Tensor | None,
    out: Tensor,
    n: int,
    precision: Precision = "fp32",
) -> None:
    """Write V of the R memory rows `obs` [R, inputs] to `out` [R]: 0 where not `wanted` [R]."""
    if flat.is_cuda:
        from stoker.kernels import mlp_on_gpu

        mlp_on_gpu.value(net, flat, moments, obs, wanted, out, n, precision)
    else:
        value_twin(net, flat, moments, obs, wanted, out, n)


def gradient(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    rows: Rows,
    index: Tensor,
    spread: Tensor | None,
    settings: PpoTerms,
    partial: Tensor,
    measured: Tensor,
    precision: Precision = "fp32",
    d_features: Tensor | None = None,
    kept: Tensor | None = None,
) -> None:
    """The gradient of PPO's loss over the memory rows `index` [K, B], and what was measured of it.

    Summed over S, `partial` [K, S, P] is the gradient and `measured` [K, S, 5] is `MEASURED`; who
    calls chooses S, over which a GPU spreads the rows. Where advantages are normalised, `spread`
    [K, any, 3] has (count, mean, sum of squared deviations) of parts of the minibatch.

    Without hidden layers `rows.obs` holds the minibatch's features, in the order of `index`: the
    actor's and the critic's, or one for both. Their gradient goes to `d_features`, of that shape.
    With `kept`, of that shape too (see `linear.Activated`), it is the gradient before the
    activation that made the features. Its sums over the rows go to `partial` where `actor` and
    `critic`, of one layer each, have the bias of the layer that was activated.
    """
    if flat.is_cuda:
        from stoker.kernels import mlp_gradient_on_gpu

        mlp_gradient_on_gpu.gradient(
            net,
            flat,
            moments,
            rows,
            index,
            spread,
            settings,
            partial,
            measured,
            precision,
            d_features,
            kept,
        )
    else:
        gradient_twin(
            net, flat, moments, rows, index, spread, settings, partial, measured, d_features, kept
        )


@torch.no_grad()
def act_twin(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    noise: Tensor,
    action: Tensor,
    log_prob: Tensor,
) -> None:
    """`act`, in float32."""
    agents = len(flat)
    features = _trunk(net, flat, net.actor, _standardised(obs.unflatten(0, (agents, -1)), moments))
    raw = _linear(flat, net.decide, features, net.outputs)
    drawn, its_log_prob = heads.sample(
        net.head, net.nvec, raw, _log_std(net, flat), noise.unflatten(0, (agents, -1))
    )
    action.copy_(drawn.flatten(0, 1))
    log_prob.copy_(its_log_prob.flatten())


@torch.no_grad()
def value_twin(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    wanted: Tensor | None,
    out: Tensor,
    n: int,
) -> None:
    """`value`, in float32."""
    by_agent = obs.unflatten(0, (-1, len(flat), n)).transpose(0, 1)  # [K, T, n, inputs]
    features = _trunk(net, flat, net.critic, _standardised(by_agent.flatten(1, 2), moments))
    worth = _linear(flat, net.judge, features, 1).unflatten(1, (-1, n)).transpose(0, 1)
    out.copy_(worth.flatten())
    if wanted is not None:
        out.masked_fill_(~wanted, 0.0)


def gradient_twin(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    rows: Rows,
    index: Tensor,
    spread: Tensor | None,
    settings: PpoTerms,
    partial: Tensor,
    measured: Tensor,
    d_features: Tensor | None = None,
    kept: Tensor | None = None,
) -> None:
    """`gradient`, in float32, by autograd; all of it goes to the first of the S parts."""
    row = index.long()
    flat = flat.detach().requires_grad_()
    if net.hidden:
        obs = _standardised(rows.obs[row], moments)
    else:
        obs = rows.obs.detach().unflatten(1, index.shape).requires_grad_()
    with torch.enable_grad():
        total, terms = _loss(net, flat, obs, rows, row, spread, settings)
        gradients = torch.autograd.grad(total.sum(), [flat] if net.hidden else [flat, obs])
    partial.zero_()
    partial[:, 0] = gradients[0]
    measured.zero_()
    measured[:, 0] = terms
    if d_features is not None:
        d_features.copy_(gradients[1].flatten(1, 2))
    if d_features is not None and kept is not None:
        d_features.mul_(linear.derivative(kept, net.activation))
        sums = d_features.unflatten(1, index.shape).sum(2)
        for (_, bias), d_bias in zip((*net.actor, *net.critic), sums, strict=False):
            partial[:, 0, bias : bias + net.inputs] = d_bias


def _loss(
    net: Net,
    flat: Tensor,
    obs: Tensor,
    rows: Rows,
    row: Tensor,
    spread: Tensor | None,
    settings: PpoTerms,
) -> tuple[Tensor, Tensor]:
    """PPO's loss [K] over the memory rows `row` [K, B], and `MEASURED` [K, 5]."""
    seen = (obs, obs) if net.hidden else (obs[0], obs[-1])
    features = _trunk(net, flat, net.actor, seen[0])
    raw = _linear(flat, net.decide, features, net.outputs)
    log_std = _log_std(net, flat)
    log_prob, entropy = heads.measure(net.head, net.nvec, raw, log_std, rows.action[row])
    advantage, clip = rows.advantage[row], settings.clip[:, None]
    value_target = advantage + rows.value[row]
    if settings.normalize:
        assert spread is not None
        mean, deviation = merged(spread)
        advantage = (advantage - mean[:, None]) / (deviation[:, None] + 1e-8)
    log_ratio = log_prob - rows.log_prob[row]
    ratio = log_ratio.exp()
    gain = torch.minimum(advantage * ratio, advantage * torch.clamp(ratio, 1 - clip, 1 + clip))

    worth = _linear(flat, net.judge, _trunk(net, flat, net.critic, seen[1]), 1).squeeze(-1)
    if settings.clip_value is not None:
        before = rows.value[row]
        worth = before + (worth - before).clamp(-settings.clip_value, settings.clip_value)
    terms = torch.stack(
        [
            -gain,
            (worth - value_target) ** 2,
            entropy,
            ratio - 1 - log_ratio,
            ((ratio - 1).abs() > clip).to(ratio.dtype),
        ],
        -1,
    ).mean(1)
    total = terms[:, 0] + settings.value * terms[:, 1] - settings.entropy * terms[:, 2]
    return total, terms.detach()


def merged(spread: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population deviation [K] of parts of which count, mean and squares are known."""
    count, mean, squares = spread.unbind(-1)
    total = count.sum(-1)
    of_all = (count * mean).sum(-1) / total
    return of_all, ((squares + count * (mean - of_all[:, None]) ** 2).sum(-1) / total).sqrt()


def _standardised(obs: Tensor, moments: Moments | None) -> Tensor:
    """`obs` [K, any, inputs], shifted and scaled."""
    if moments is None:
        return obs
    centre, scale = moments
    return ((obs - centre[:, None]) * scale[:, None]).clamp(-CLIP, CLIP)


def _trunk(net: Net, flat: Tensor, places: tuple[tuple[int, int], ...], x: Tensor) -> Tensor:
    for place, width in zip(places[: len(net.hidden)], net.hidden, strict=True):
        x = ACTIVATIONS[net.activation](_linear(flat, place, x, width))
    return x


def _linear(flat: Tensor, place: tuple[int, int], x: Tensor, outputs: int) -> Tensor:
    """One layer of every agent: x is [K, any, inputs]."""
    (weight, bias), inputs = place, x.shape[-1]
    matrix = flat[:, weight : weight + outputs * inputs].unflatten(1, (outputs, inputs))
    return torch.baddbmm(flat[:, None, bias : bias + outputs], x, matrix.transpose(1, 2))


def _log_std(net: Net, flat: Tensor) -> Tensor | None:
    if net.head != "gaussian":
        return None
    return flat[:, None, net.log_std : net.log_std + net.outputs]
