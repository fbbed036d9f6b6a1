"""`wide` in Triton: the kernels of `linear` and `mlp`, and one that fetches what was seen.

The constants in capitals are what `bench.kernels_wide` measures alternatives to.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels import layers_on_gpu, linear_on_gpu, mlp_gradient_on_gpu, mlp_on_gpu
from stoker.kernels.layers_on_gpu import Launch
from stoker.kernels.linear import Precision, stored
from stoker.kernels.linear_first_on_gpu import (
    MOST_ADDED,
    MOST_INPUTS,
    backward_first,
    forward_first,
)
from stoker.kernels.linear_weight_on_gpu import backward_weight
from stoker.kernels.mlp import MEASURED, Moments, Net, PpoTerms, Rows
from stoker.kernels.sums_on_gpu import summed
from stoker.kernels.tiles_on_gpu import PROCESSORS
from stoker.kernels.wide import head_of

VALUED_ROWS = 32768
"""Rows that are valued at once: what their layers write should stay in the cache."""
HEAD_NUMBERS = 8192
"""Features of a tile of rows that a program of the last kernel holds."""
HEAD_PARTS = 4 * PROCESSORS
"""Programs that share the rows of the last kernel, at most."""
HEAD_WARPS = 4

_FETCHED_NUMBERS = 4096  # by one program


class _Layers(NamedTuple):
    """The trunks of G networks: views into a flat buffer, layer by layer."""

    weights: list[Tensor]  # [G, O, I] each
    biases: list[Tensor]  # [G, O] each


class _Passed(NamedTuple):
    """What trunks made of rows, layer by layer."""

    given: list[Tensor]  # to each layer, [B, I] and then [G, B, I]; at last the features
    kept: list[Tensor]  # [G, B, O] each, see `linear.Activated`


@triton.jit(do_not_specialize=["rows"])
def _fetch(
    obs,
    index,
    limit,
    centre,
    scale,
    out,
    rows,
    inputs: tl.constexpr,
    padded: tl.constexpr,
    indexed: tl.constexpr,
    limited: tl.constexpr,
    scaled: tl.constexpr,
    block: tl.constexpr,
):
    i = tl.program_id(0) * block + tl.arange(0, block)
    here = i < rows
    if limited:
        here = here & (i < tl.load(limit))
    row = i.to(tl.int64)
    source = row
    if indexed:
        source = tl.load(index + i, here, other=0).to(tl.int64)
    x = layers_on_gpu.observed(obs, source, here, centre, scale, inputs, padded, scaled)
    column = tl.arange(0, padded)[None, :]
    place = out + row[:, None] * inputs + column
    tl.store(place, x.to(out.dtype.element_ty), here[:, None] & (column < inputs))


def act(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    noise: Tensor,
    action: Tensor,
    log_prob: Tensor,
    precision: Precision,
) -> None:
    """See `mlp.act`."""
    start, head = head_of(net)
    layers = layers_of(net, flat, [net.actor], precision)
    x = fetched(obs, len(obs), moments, precision)
    features = passed(net, layers, x, precision).given[-1]
    mlp_on_gpu.act(
        head,
        flat[:, start:],
        None,
        features[0],
        noise,
        action,
        log_prob,
        precision,
        Launch(block=16, num_warps=4),
    )


def value(
    net: Net,
    flat: Tensor,
    moments: Moments | None,
    obs: Tensor,
    wanted: Tensor | None,
    out: Tensor,
    n: int,
    precision: Precision,
) -> None:
    """See `mlp.value`: what is wanted is brought together, and the rest is left out."""
    start, head = head_of(net)
    layers = layers_of(net, flat, [net.critic], precision)
    rows = len(obs)
    index, count, worth = None, None, out
    if wanted is not None:
        (index, count), worth = brought_together(wanted), out.new_empty(rows)
    for first in range(0, rows, VALUED_ROWS):
        last = min(rows, first + VALUED_ROWS)
        limit = here = None
        if count is not None:
            limit = count - first
            here = torch.arange(last - first, device=obs.device) < limit
        x = (
            fetched(obs[first:last], last - first, moments, precision)
            if index is None
            else fetched(obs, last - first, moments, precision, index[first:last], limit)
        )
        features = passed(net, layers, x, precision, limit).given[-1]
        mlp_on_gpu.value(
            head,
            flat[:, start:],
            None,
            features[0],
            here,
            worth[first:last],
            last - first,
            precision,
            head_launch(net),
        )
    if index is not None:
        out.copy_(out.new_zeros(rows + 1).scatter_(0, index.long(), worth)[:rows])


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
    precision: Precision,
) -> None:
    """See `wide.gradient`."""
    trunks = [net.actor] if net.shared else [net.actor, net.critic]
    layers = layers_of(net, flat, trunks, precision)
    batch = index.shape[1]
    x = fetched(rows.obs, batch, moments, precision, index[0])
    made = passed(net, layers, x, precision)
    into = layers_of(net, partial[0], trunks, "fp32")
    d_out = _through_heads(
        net,
        flat,
        made,
        rows,
        index,
        spread,
        settings,
        partial,
        into.biases[-1],
        measured,
        precision,
    )
    for i in range(len(net.hidden) - 1, -1, -1):
        backward_weight(d_out, made.given[i], precision, into.weights[i])
        below, how = (d_out, layers.weights[i], made.kept[i - 1]), (net.activation, precision)
        if i == 1 and net.inputs <= MOST_INPUTS:
            backward_first(*below, x, *how, into.weights[0], into.biases[0])
            break
        if i:
            d_out = linear_on_gpu.backward_input(*below, *how, into.biases[i - 1])


def _through_heads(
    net: Net,
    flat: Tensor,
    made: _Passed,
    rows: Rows,
    index: Tensor,
    spread: Tensor | None,
    settings: PpoTerms,
    partial: Tensor,
    d_bias: Tensor,
    measured: Tensor,
    precision: Precision,
) -> Tensor:
    """The gradient [G, B, O] before the trunks' last activation.

    Written are what was measured, `d_bias` [G, O] of the trunks' last layer, and the gradient of
    what follows the trunks.
    """
    start, head = head_of(net)
    own, features, launch = net.size - start, made.given[-1], head_launch(net)
    parts = min(triton.cdiv(index.shape[1], launch.block), HEAD_PARTS)
    d_head = flat.new_empty(1, parts, head.size)
    measures = flat.new_empty(1, parts, len(MEASURED))
    d_features = torch.empty_like(features)
    mlp_gradient_on_gpu.gradient(
        head,
        flat[:, start:],
        None,
        rows._replace(obs=features),
        index,
        spread,
        settings,
        d_head,
        measures,
        precision,
        d_features,
        made.kept[-1],
        launch,
    )
    d_head = d_head.transpose(0, 1)
    summed(d_head[..., :own], partial[0, :, start:])
    summed(d_head[:, 0, own:].unflatten(1, d_bias.shape), d_bias)
    summed(measures.transpose(0, 1), measured[0])
    return d_features


def layers_of(
    net: Net, flat: Tensor, trunks: list[tuple[tuple[int, int], ...]], precision: Precision
) -> _Layers:
    """Trunks' weights, as products read them, and biases, of which `flat` [1, P] is made up."""
    flat = flat.view(-1)
    rounded = flat.to(stored(precision))
    weights, biases = [], []
    widths = (net.inputs, *net.hidden)
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        (weight, bias), *others = (trunk[i] for trunk in trunks)
        apart = [other[0] - weight for other in others], [other[1] - bias for other in others]
        shape = (len(trunks), outputs, inputs)
        # Of one network alone the first stride is 0, not 1, by which kernels would not know how
        # its rows lie in memory, and read them number by number.
        weights.append(rounded[weight:].as_strided(shape, (*(apart[0] or [0]), inputs, 1)))
        biases.append(flat[bias:].as_strided(shape[:2], (*(apart[1] or [0]), 1)))
    return _Layers(weights, biases)


def fetched(
    obs: Tensor,
    rows: int,
    moments: Moments | None,
    precision: Precision,
    index: Tensor | None = None,
    limit: Tensor | None = None,
) -> Tensor:
    """The first `rows` of `obs`, or of `index` into it, standardised; see `linear.forward_twin`."""
    inputs = obs.shape[1]
    padded = layers_on_gpu.padded(inputs)
    out = torch.empty(rows, inputs, dtype=stored(precision), device=obs.device)
    centre, scale = moments or (obs, obs)
    block = max(1, _FETCHED_NUMBERS // padded)
    _fetch[(triton.cdiv(rows, block),)](
        obs,
        obs if index is None else index,
        obs if limit is None else limit,
        centre,
        scale,
        out,
        rows,
        inputs=inputs,
        padded=padded,
        indexed=index is not None,
        limited=limit is not None,
        scaled=moments is not None,
        block=block,
    )
    return out


def passed(
    net: Net, layers: _Layers, x: Tensor, precision: Precision, limit: Tensor | None = None
) -> _Passed:
    """What the trunks make of `x` [B, inputs]."""
    given, kept = [x], []
    for weight, bias in zip(*layers, strict=True):
        narrow = weight.shape[2] <= MOST_ADDED
        forward = forward_first if narrow else linear_on_gpu.forward
        layer = (given[-1], weight, bias, net.activation, precision)
        out, its_kept = forward(*layer, limit=limit)
        given.append(out)
        kept.append(its_kept)
    return _Passed(given, kept)


def brought_together(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that are `wanted` [R], in order and then R over and over, [R]; their number."""
    rows = len(wanted)
    count = wanted.cumsum(0, dtype=torch.int32)
    place = torch.where(wanted, count - 1, rows).long()
    row = torch.arange(rows, dtype=torch.int32, device=wanted.device)
    index = torch.full((rows + 1,), rows, dtype=torch.int32, device=wanted.device)
    return index.scatter_(0, place, row)[:rows], count[-1]


def head_launch(net: Net) -> Launch:
    """Of kernels that hold whole rows of features."""
    rows = HEAD_NUMBERS // layers_on_gpu.padded(net.hidden[-1])
    return Launch(block=max(layers_on_gpu.NARROWEST, min(64, rows)), num_warps=HEAD_WARPS)
