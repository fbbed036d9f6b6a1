"""Actor-critics too wide for one kernel a pass: one agent, layer by layer, as `mlp` has them.

`act`, `value`, `gradient`, `parts` and `fits` are those of `mlp` for K = 1; on the CPU they are its
twins. On a GPU each layer is a kernel of `linear`, which actor and critic go through together; what
follows their trunks is what `mlp` makes of features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stoker.kernels import heads, mlp
from stoker.kernels.linear import Precision
from stoker.kernels.mlp import Moments, Net, PpoTerms, Rows

_MOST_INPUTS = 4096
_MOST_HIDDEN = 8192
_MOST_FEATURES = 512
_MOST_OUTPUTS = 64
_MOST_IN_HEAD = 16384  # weights from features to outputs, both padded: a program holds them all
_NARROWEST = 16


def fits(net: Net) -> bool:
    """Whether the kernels take this net."""
    return (
        len(net.hidden) > 0
        and net.inputs <= _MOST_INPUTS
        and all(width <= _MOST_HIDDEN for width in net.hidden)
        and net.hidden[-1] <= _MOST_FEATURES
        and net.outputs <= _MOST_OUTPUTS
        and _padded(net.hidden[-1]) * _padded(net.outputs) <= _MOST_IN_HEAD
        and net.activation in mlp.ACTIVATIONS
        and net.head in heads.HEADS
        and head_of(net)[0] > max(bias for _, bias in net.actor + net.critic)
    )


def parts(agents: int, batch: int, device: torch.device) -> int:
    """One: a `gradient` is whole, however the GPU divides it."""
    return 1


def head_of(net: Net) -> tuple[int, Net]:
    """What follows the trunks: from where on its parameters lie, and as a net without layers.

    After its own parameters come the biases of the trunks' last layer: see `mlp.gradient`.
    """
    own = [net.decide[0], net.judge[0]] + [net.log_std] * (net.log_std >= 0)
    start, width = min(own), net.hidden[-1]
    size = net.size - start
    head = net._replace(
        inputs=width,
        hidden=(),
        actor=((-1, size),),
        critic=((-1, size if net.shared else size + width),),
        decide=(net.decide[0] - start, net.decide[1] - start),
        judge=(net.judge[0] - start, net.judge[1] - start),
        log_std=net.log_std - start if net.log_std >= 0 else -1,
        size=size + width * (1 if net.shared else 2),
    )
    return start, head


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
    """See `mlp.act`."""
    if flat.is_cuda:
        from stoker.kernels import wide_on_gpu

        wide_on_gpu.act(net, flat, moments, obs, noise, action, log_prob, precision)
    else:
        mlp.act_twin(net, flat, moments, obs, noise, action, log_prob)


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
    """See `mlp.value`. What is not `wanted` costs next to nothing."""
    if flat.is_cuda:
        from stoker.kernels import wide_on_gpu

        wide_on_gpu.value(net, flat, moments, obs, wanted, out, n, precision)
    else:
        mlp.value_twin(net, flat, moments, obs, wanted, out, n)


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
) -> None:
    """See `mlp.gradient`; `partial` is [1, 1, P] and `measured` [1, 1, 5]."""
    if flat.is_cuda:
        from stoker.kernels import wide_on_gpu

        wide_on_gpu.gradient(
            net, flat, moments, rows, index, spread, settings, partial, measured, precision
        )
    else:
        mlp.gradient_twin(net, flat, moments, rows, index, spread, settings, partial, measured)


def _padded(width: int) -> int:
    """The power of two that a kernel fills a width up to."""
    return max(_NARROWEST, 1 << (width - 1).bit_length())
