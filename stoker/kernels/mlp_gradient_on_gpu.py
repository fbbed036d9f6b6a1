"""`mlp.gradient` in Triton: forward and backward through a network without leaving the chip.

A program walks through tiles of one agent's rows with the network's weights and the sums of their
gradients at hand. The actor and the critic are programs of their own unless they share a trunk.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stoker.kernels import heads, heads_on_gpu, layers_on_gpu
from stoker.kernels.layers_on_gpu import Launch
from stoker.kernels.mlp import MEASURED, Moments, Net, PpoTerms, Rows

GRADIENT = Launch(block=64, num_warps=4)
_MEASURED = tl.constexpr(len(MEASURED))


@triton.jit
def _descend(
    flat,
    centre,
    scale,
    obs,
    first_feature,
    action,
    old_log_prob,
    advantage,
    old_value,
    index,
    spread,
    clip,
    entropy_weight,
    value_weight,
    clip_value,
    partial,
    measured,
    d_features,
    kept,
    rows,
    parts,
    parts_padded: tl.constexpr,
    through: tl.constexpr,
    clips: tl.constexpr,
    normalize: tl.constexpr,
    scaled: tl.constexpr,
    widths: tl.constexpr,
    padded: tl.constexpr,
    depth: tl.constexpr,
    activation: tl.constexpr,
    trunk: tl.constexpr,
    decide: tl.constexpr,
    judge: tl.constexpr,
    log_std_place: tl.constexpr,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
    outputs: tl.constexpr,
    outputs_padded: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
    acts: tl.constexpr,
    judges: tl.constexpr,
):
    """One program's share of a trunk's gradient, with the actor's layer, the critic's, or both."""
    weights, biases = layers_on_gpu.layers(flat, trunk, widths, padded, depth)
    d_weights = ()
    d_biases = ()
    for i in tl.static_range(depth):
        d_weights = d_weights + (layers_on_gpu.zeros(padded[i], padded[i + 1]),)
        d_biases = d_biases + (layers_on_gpu.zero_vector(padded[i + 1]),)
    if through:
        d_bias = layers_on_gpu.zero_vector(padded[0])
    share = 1.0 / rows
    if acts:
        to_raw = layers_on_gpu.weight(
            flat, decide[0], widths[depth], outputs, padded[depth], outputs_padded
        )
        raw_bias = layers_on_gpu.vector(flat, decide[1], outputs, outputs_padded)
        if head == "gaussian":
            log_std = layers_on_gpu.vector(flat, log_std_place, outputs, outputs_padded)
        else:
            log_std = tl.zeros([outputs_padded], tl.float32)
        d_to_raw = layers_on_gpu.zeros(padded[depth], outputs_padded)
        d_raw_bias = layers_on_gpu.zero_vector(outputs_padded)
        d_log_std = layers_on_gpu.zero_vector(outputs_padded)
        policy_loss = layers_on_gpu.zero_vector(block)
        entropy = layers_on_gpu.zero_vector(block)
        divergence = layers_on_gpu.zero_vector(block)
        clipped = layers_on_gpu.zero_vector(block)
        mean = 0.0
        deviation = 1.0
        if normalize:
            mean, deviation = heads_on_gpu.merged(spread, parts, parts_padded)
            deviation += 1e-8
    if judges:
        to_value = layers_on_gpu.vector(flat, judge[0], widths[depth], padded[depth])
        value_bias = tl.load(flat + judge[1])
        d_to_value = layers_on_gpu.zero_vector(padded[depth])
        d_value_bias = layers_on_gpu.zero_vector(block)
        value_loss = layers_on_gpu.zero_vector(block)

    for tile in range(tl.program_id(0), tl.cdiv(rows, block), tl.num_programs(0)):
        position = tile * block + tl.arange(0, block)
        here = position < rows
        row = tl.load(index + position, here, other=0).to(tl.int64)
        source = row
        if depth == 0:
            source = first_feature + position
        x = layers_on_gpu.observed(obs, source, here, centre, scale, widths[0], padded[0], scaled)
        before, after = layers_on_gpu.passed(x, weights, biases, depth, activation, precision)
        its_advantage = tl.load(advantage + row, here, other=0.0)
        if acts:
            raw = layers_on_gpu.product(after[depth], to_raw, precision) + raw_bias[None, :]
            d_raw, wider, loss, uncertainty, drift, cut = heads_on_gpu.policy_loss(
                raw,
                log_std,
                action,
                row,
                here,
                tl.load(old_log_prob + row, here, other=0.0),
                (its_advantage - mean) / deviation,
                clip,
                entropy_weight,
                share,
                head,
                starts,
                columns,
            )
            policy_loss += loss
            entropy += uncertainty
            divergence += drift
            clipped += cut
            d_log_std += wider
            d_to_raw = layers_on_gpu.transposed_product_added(
                after[depth], d_raw, d_to_raw, precision
            )
            d_raw_bias += tl.sum(d_raw, 0)
            d_h = layers_on_gpu.product(d_raw, tl.trans(to_raw), precision)
        if judges:
            its_old_value = tl.load(old_value + row, here, other=0.0)
            d_value, error = heads_on_gpu.value_loss(
                tl.sum(after[depth] * to_value[None, :], 1) + value_bias,
                its_old_value,
                its_advantage + its_old_value,
                here,
                clip_value,
                value_weight,
                share,
                clips,
            )
            value_loss += error
            d_to_value += tl.sum(d_value[:, None] * after[depth], 0)
            d_value_bias += d_value
            if acts:
                d_h += d_value[:, None] * to_value[None, :]
            else:
                d_h = d_value[:, None] * to_value[None, :]
        if depth == 0:
            column = tl.arange(0, padded[0])[None, :]
            place = source[:, None] * widths[0] + column
            inside = here[:, None] & (column < widths[0])
            if through:
                z = tl.load(kept + place, inside, other=0.0).to(tl.float32)
                d_h *= layers_on_gpu.slope(z, x, activation)
                d_bias += tl.sum(d_h, 0)
            tl.store(d_features + place, d_h, inside)
        more_weights = ()
        more_biases = ()
        for i in tl.static_range(depth):
            d_z = d_h * layers_on_gpu.slope(before[depth - 1 - i], after[depth - i], activation)
            grown = layers_on_gpu.transposed_product_added(
                after[depth - 1 - i], d_z, d_weights[depth - 1 - i], precision
            )
            more_weights = (grown,) + more_weights
            more_biases = (d_biases[depth - 1 - i] + tl.sum(d_z, 0),) + more_biases
            if i < depth - 1:
                d_h = layers_on_gpu.product(d_z, tl.trans(weights[depth - 1 - i]), precision)
        d_weights = more_weights
        d_biases = more_biases

    for i in tl.static_range(depth):
        layers_on_gpu.store_weight(
            partial, trunk[2 * i], d_weights[i], widths[i], widths[i + 1], padded[i], padded[i + 1]
        )
        layers_on_gpu.store_vector(
            partial, trunk[2 * i + 1], d_biases[i], widths[i + 1], padded[i + 1]
        )
    if through:
        layers_on_gpu.store_vector(partial, trunk[1], d_bias, widths[0], padded[0])
    if acts:
        layers_on_gpu.store_weight(
            partial, decide[0], d_to_raw, widths[depth], outputs, padded[depth], outputs_padded
        )
        layers_on_gpu.store_vector(partial, decide[1], d_raw_bias, outputs, outputs_padded)
        if head == "gaussian":
            layers_on_gpu.store_vector(partial, log_std_place, d_log_std, outputs, outputs_padded)
        tl.store(measured, tl.sum(policy_loss, 0))
        tl.store(measured + 2, tl.sum(entropy, 0))
        tl.store(measured + 3, tl.sum(divergence, 0))
        tl.store(measured + 4, tl.sum(clipped, 0))
    if judges:
        layers_on_gpu.store_vector(partial, judge[0], d_to_value, widths[depth], padded[depth])
        tl.store(partial + judge[1], tl.sum(d_value_bias, 0))
        tl.store(measured + 1, tl.sum(value_loss, 0))


@triton.jit
def _gradient(
    flat,
    centre,
    scale,
    obs,
    action,
    old_log_prob,
    advantage,
    old_value,
    index,
    spread,
    clip,
    entropy_weight,
    value_weight,
    clip_value,
    partial,
    measured,
    d_features,
    kept,
    rows,
    parts,
    size,
    parts_padded: tl.constexpr,
    through: tl.constexpr,
    clips: tl.constexpr,
    normalize: tl.constexpr,
    scaled: tl.constexpr,
    widths: tl.constexpr,
    padded: tl.constexpr,
    depth: tl.constexpr,
    activation: tl.constexpr,
    actor: tl.constexpr,
    critic: tl.constexpr,
    shared: tl.constexpr,
    decide: tl.constexpr,
    judge: tl.constexpr,
    log_std_place: tl.constexpr,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
    outputs: tl.constexpr,
    outputs_padded: tl.constexpr,
    precision: tl.constexpr,
    block: tl.constexpr,
):
    agent = tl.program_id(2).to(tl.int64)
    part = agent * tl.num_programs(0) + tl.program_id(0)
    flat += agent * size
    centre += agent * widths[0]
    scale += agent * widths[0]
    index += agent * rows
    spread += agent * parts * 3
    partial += part * size
    measured += part * _MEASURED
    first_feature = (tl.program_id(1) * tl.num_programs(2) + agent) * rows
    clip = tl.load(clip + agent)
    entropy_weight = tl.load(entropy_weight + agent)
    value_weight = tl.load(value_weight + agent)
    if tl.program_id(1) == 0:
        _descend(
            flat,
            centre,
            scale,
            obs,
            first_feature,
            action,
            old_log_prob,
            advantage,
            old_value,
            index,
            spread,
            clip,
            entropy_weight,
            value_weight,
            clip_value,
            partial,
            measured,
            d_features,
            kept,
            rows,
            parts,
            parts_padded,
            through,
            clips,
            normalize,
            scaled,
            widths,
            padded,
            depth,
            activation,
            actor,
            decide,
            judge,
            log_std_place,
            head,
            starts,
            columns,
            outputs,
            outputs_padded,
            precision,
            block,
            True,
            shared,
        )
    else:
        if not shared:
            _descend(
                flat,
                centre,
                scale,
                obs,
                first_feature,
                action,
                old_log_prob,
                advantage,
                old_value,
                index,
                spread,
                clip,
                entropy_weight,
                value_weight,
                clip_value,
                partial,
                measured,
                d_features,
                kept,
                rows,
                parts,
                parts_padded,
                through,
                clips,
                normalize,
                scaled,
                widths,
                padded,
                depth,
                activation,
                critic,
                decide,
                judge,
                log_std_place,
                head,
                starts,
                columns,
                outputs,
                outputs_padded,
                precision,
                block,
                False,
                True,
            )


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
    precision: str,
    d_features: Tensor | None,
    kept: Tensor | None = None,
    launch: Launch = GRADIENT,
) -> None:
    """See `mlp.gradient`."""
    centre, scale = moments or (flat, flat)
    spread = flat[:, None] if spread is None else spread
    (agents, batch), parts = index.shape, spread.shape[1]
    _gradient[(partial.shape[1], 1 if net.shared else 2, agents)](
        flat,
        centre,
        scale,
        rows.obs,
        rows.action,
        rows.log_prob,
        rows.advantage,
        rows.value,
        index,
        spread,
        settings.clip,
        settings.entropy,
        settings.value,
        settings.clip_value or 0.0,
        partial,
        measured,
        flat if d_features is None else d_features,
        flat if kept is None else kept,
        batch,
        parts,
        net.size,
        parts_padded=triton.next_power_of_2(parts),
        through=kept is not None,
        clips=settings.clip_value is not None,
        normalize=settings.normalize,
        scaled=moments is not None,
        actor=sum(net.actor, ()),
        critic=sum(net.critic, ()),
        shared=net.shared,
        decide=net.decide,
        judge=net.judge,
        log_std_place=net.log_std,
        head=net.head,
        starts=heads.starts(net.nvec),
        columns=net.columns,
        outputs=net.outputs,
        outputs_padded=layers_on_gpu.padded(net.outputs),
        **layers_on_gpu.described(net, precision),
        **launch._asdict(),
    )
