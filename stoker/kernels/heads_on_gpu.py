"""Action distributions and PPO's loss on a tile of raw outputs [rows, padded outputs].

These are parts for kernels. `row` [rows] says where a row's action and noise are stored, `here`
which rows there are; columns from `outputs` on are padding.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

_LOWEST = tl.constexpr(float("-inf"))
_HALF_LOG_2_PI = tl.constexpr(0.5 * math.log(2 * math.pi))
_HALF_LOG_2_PI_E = tl.constexpr(0.5 * math.log(2 * math.pi * math.e))


@triton.jit
def sample(
    raw,
    log_std,
    noise,
    action,
    row,
    here,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
    widest: tl.constexpr,
):
    """Draw an action a row and store it; its log-probability [rows]."""
    output = tl.arange(0, raw.shape[1])[None, :]
    if head == "categorical":
        log_prob = tl.zeros([raw.shape[0]], tl.float32)
        for c in tl.static_range(columns):
            inside = (output >= starts[c]) & (output < starts[c + 1])
            log_probs = _log_softmax(raw, inside)
            place = (row[:, None] * columns + c) * widest + output - starts[c]
            drawn = tl.load(noise + place, here[:, None] & inside, other=1.0)
            # The Gumbel trick: the arg-max of log p - log E, with E exponential, is distributed
            # as p.
            choice = tl.argmax(tl.where(inside, log_probs - tl.log(drawn), _LOWEST), 1)
            # Of NaN it may be any: an agent that went astray must not bring the others down.
            choice = tl.minimum(tl.maximum(choice, starts[c]), starts[c + 1] - 1)
            log_prob += tl.sum(tl.where(output == choice[:, None], log_probs, 0.0), 1)
            tl.store(action + row * columns + c, choice.to(tl.int64) - starts[c], here)
    else:
        inside = output < columns
        place = row[:, None] * columns + output
        drawn = tl.load(noise + place, here[:, None] & inside, other=0.0)
        if head == "bernoulli":
            chosen = (drawn < tl.sigmoid(raw)).to(tl.float32)
            tl.store(action + place, chosen.to(tl.int64), here[:, None] & inside)
            log_prob = tl.sum(tl.where(inside, raw * chosen - _softplus(raw), 0.0), 1)
        else:
            chosen = raw + tl.exp(log_std)[None, :] * drawn
            tl.store(action + place, chosen, here[:, None] & inside)
            log_prob = tl.sum(tl.where(inside, _log_density(raw, log_std, chosen), 0.0), 1)
    return log_prob


@triton.jit
def measure(
    raw,
    log_std,
    action,
    row,
    here,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
):
    """Log-probability of the stored actions and entropy, [rows]; of both, their slopes in `raw`."""
    output = tl.arange(0, raw.shape[1])[None, :]
    if head == "categorical":
        log_prob = tl.zeros([raw.shape[0]], tl.float32)
        entropy = tl.zeros([raw.shape[0]], tl.float32)
        d_log_prob = tl.zeros_like(raw)
        d_entropy = tl.zeros_like(raw)
        for c in tl.static_range(columns):
            inside = (output >= starts[c]) & (output < starts[c + 1])
            log_probs = _log_softmax(raw, inside)
            probs = tl.where(inside, tl.exp(log_probs), 0.0)
            its_entropy = -tl.sum(probs * log_probs, 1)
            chosen = tl.load(action + row * columns + c, here, other=0).to(tl.int32) + starts[c]
            hit = output == chosen[:, None]
            log_prob += tl.sum(tl.where(hit, log_probs, 0.0), 1)
            entropy += its_entropy
            d_log_prob += tl.where(hit, 1.0, 0.0) - probs
            d_entropy -= probs * (log_probs + its_entropy[:, None])
    else:
        inside = output < columns
        place = row[:, None] * columns + output
        chosen = tl.load(action + place, here[:, None] & inside, other=0).to(tl.float32)
        if head == "bernoulli":
            probs = tl.sigmoid(raw)
            softplus = _softplus(raw)
            log_prob = tl.sum(tl.where(inside, raw * chosen - softplus, 0.0), 1)
            entropy = tl.sum(tl.where(inside, softplus - raw * probs, 0.0), 1)
            d_log_prob = tl.where(inside, chosen - probs, 0.0)
            d_entropy = tl.where(inside, -raw * probs * (1.0 - probs), 0.0)
        else:
            log_prob = tl.sum(tl.where(inside, _log_density(raw, log_std, chosen), 0.0), 1)
            of_each = tl.where(inside, log_std[None, :] + _HALF_LOG_2_PI_E, 0.0)
            entropy = tl.sum(of_each + tl.zeros_like(raw), 1)
            narrowness = tl.exp(-log_std)[None, :]
            d_log_prob = tl.where(inside, (chosen - raw) * narrowness * narrowness, 0.0)
            d_entropy = tl.zeros_like(raw)
    return log_prob, entropy, d_log_prob, d_entropy


@triton.jit
def policy_loss(
    raw,
    log_std,
    action,
    row,
    here,
    old_log_prob,
    advantage,
    clip,
    entropy_weight,
    share,
    head: tl.constexpr,
    starts: tl.constexpr,
    columns: tl.constexpr,
):
    """The actor's loss: its slope in `raw` and in `log_std`, and four terms [rows] of `MEASURED`.

    Each row weighs `share`. The terms are the policy loss, the entropy, the divergence and whether
    the ratio was clipped, each 0 where no row is.
    """
    log_prob, entropy, d_log_prob, d_entropy = measure(
        raw, log_std, action, row, here, head, starts, columns
    )
    log_ratio = tl.where(here, log_prob - old_log_prob, 0.0)
    ratio = tl.exp(log_ratio)
    clipped = tl.minimum(tl.maximum(ratio, 1.0 - clip), 1.0 + clip)
    gain = tl.minimum(advantage * ratio, advantage * clipped)
    # The unclipped gain counts where it is the smaller, and where nothing is clipped.
    counts = here & ((ratio == clipped) | (advantage * ratio < advantage * clipped))
    per_log_prob = tl.where(counts, -share * advantage * ratio, 0.0)
    per_entropy = tl.where(here, -share * entropy_weight, 0.0)
    d_raw = per_log_prob[:, None] * d_log_prob + per_entropy[:, None] * d_entropy
    if head == "gaussian":
        deviation = d_log_prob * tl.exp(log_std)[None, :]
        wider = per_log_prob[:, None] * (deviation * deviation - 1.0) + per_entropy[:, None]
        d_log_std = tl.sum(wider, 0)
    else:
        d_log_std = tl.zeros([raw.shape[1]], tl.float32)
    return (
        d_raw,
        d_log_std,
        tl.where(here, -gain, 0.0) * share,
        tl.where(here, entropy, 0.0) * share,
        (ratio - 1.0 - log_ratio) * share,
        tl.where(here & (tl.abs(ratio - 1.0) > clip), share, 0.0),
    )


@triton.jit
def value_loss(value, old_value, target, here, clip_value, weight, share, clips: tl.constexpr):
    """The critic's loss: its slope in `value` [rows], and the squared error."""
    error = tl.where(here, value - target, 0.0)
    slope = 2.0 * error
    if clips:
        step = value - old_value
        kept = tl.minimum(tl.maximum(step, -clip_value), clip_value)
        error = tl.where(here, old_value + kept - target, 0.0)
        slope = tl.where(step == kept, 2.0 * error, 0.0)
    return slope * weight * share, error * error * share


@triton.jit
def merged(spread, parts, parts_padded: tl.constexpr):
    """Mean and population deviation of parts of which count, mean and squares are stored."""
    part = tl.arange(0, parts_padded)
    here = part < parts
    count = tl.load(spread + 3 * part, here, other=0.0)
    mean = tl.load(spread + 3 * part + 1, here, other=0.0)
    squares = tl.load(spread + 3 * part + 2, here, other=0.0)
    total = tl.sum(count, 0)
    of_all = tl.sum(count * mean, 0) / total
    apart = mean - of_all
    return of_all, tl.sqrt(tl.sum(squares + count * apart * apart, 0) / total)


@triton.jit
def _log_softmax(raw, inside):
    """Over the outputs `inside`; of the others, 0."""
    shifted = raw - tl.max(tl.where(inside, raw, _LOWEST), 1)[:, None]
    total = tl.sum(tl.where(inside, tl.exp(shifted), 0.0), 1)
    return tl.where(inside, shifted - tl.log(total)[:, None], 0.0)


@triton.jit
def _log_density(raw, log_std, action):
    deviation = (action - raw) * tl.exp(-log_std)[None, :]
    return -0.5 * deviation * deviation - log_std[None, :] - _HALF_LOG_2_PI


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
