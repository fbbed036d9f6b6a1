"""The layers of a plain MLP policy of Stable-Baselines3, found by their names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.errors import ModelFileError
from stoker.runs.sb3_zip import ForeignModel

_OTHERS = {
    r"features_extractor\.": "a CnnPolicy, or a features extractor with layers of its own,",
    r"^lstm_": "RecurrentPPO",
    r"^quantile_net\.": "QR-DQN",
    r"^(actor|critic)": "SAC, TD3 or DDPG",
}
"""By a pattern of names, whose they are."""
_EXPECTED = "Only the MLP policies of PPO and DQN can be imported."


class Layer(NamedTuple):
    """Of a network: [out, in] and [out]."""

    weight: Tensor
    bias: Tensor


class Layers(NamedTuple):
    """Those of PPO, or of DQN."""

    shared: list[Layer]
    """Before both, as Stable-Baselines3 had them before 1.8."""
    actor: list[Layer]
    """Hidden ones; of DQN, those of its one network."""
    critic: list[Layer]
    """Hidden ones; of DQN, those of its target."""
    decide: Layer
    """To logits, means or Q-values."""
    judge: Layer
    """To the value; of DQN, the target's Q-values."""
    log_std: Tensor | None


def algorithm_of(model: ForeignModel) -> str:
    """`ppo` or `dqn`, by names and by what it was told; ModelFileError for all others."""
    names = list(model.tensors)
    for name in names:
        theirs = next((what for part, what in _OTHERS.items() if re.search(part, name)), None)
        if theirs is not None:
            raise ModelFileError(f"{model.name} has {name:.60}, as {theirs} has. {_EXPECTED}")
    if any(name.startswith("q_net.q_net.") for name in names):
        return "dqn"
    if "action_net.weight" in names:
        if {"n_epochs", "clip_range"} <= set(model.facts):
            return "ppo"
        raise ModelFileError(
            f"{model.name} has the policy of PPO, but no n_epochs and clip_range: it is of A2C, or "
            f"of another algorithm like it. {_EXPECTED}"
        )
    found = ", ".join(names[:4]) or "no weights"
    raise ModelFileError(f"{model.name} has {found:.200}: no policy that is known. {_EXPECTED}")


def layers_of(model: ForeignModel, algo: str) -> Layers:
    """The layers of the policy; ModelFileError unless all weights there are belong to them."""
    left = dict(model.tensors)
    if algo == "dqn":
        (*actor, decide), (*critic, judge) = (
            _stack(model, left, f"{net}.q_net", least=1) for net in ("q_net", "q_net_target")
        )
        layers = Layers([], actor, critic, decide, judge, None)
    else:
        shared, actor, critic = (
            _stack(model, left, f"mlp_extractor.{net}_net") for net in ("shared", "policy", "value")
        )
        decide, judge = (_layer(model, left, name) for name in ("action_net", "value_net"))
        layers = Layers(shared, actor, critic, decide, judge, left.pop("log_std", None))
    if left:
        raise ModelFileError(
            f"{model.name} has {next(iter(left)):.60}, which is no part of a plain MLP. {_EXPECTED}"
        )
    _check(model, algo, layers)
    return layers


def sizes_of(layers: Layers) -> dict[str, Any]:
    """The settings that say which layers there are."""
    actor, critic = (_widths(layers.shared + own) for own in (layers.actor, layers.critic))
    one = bool(layers.shared) and not layers.actor and not layers.critic
    apart = critic if critic != actor else ()
    return {"network_arch": actor, "critic_arch": apart, "shared_trunk": one}


def _widths(layers: list[Layer]) -> tuple[int, ...]:
    return tuple(len(layer.bias) for layer in layers)


def _stack(
    model: ForeignModel, left: dict[str, Tensor], prefix: str, least: int = 0
) -> list[Layer]:
    """Layers 0, 2, 4 and so on: an activation lies between two."""
    found: list[Layer] = []
    while f"{prefix}.{2 * len(found)}.weight" in left or len(found) < least:
        found.append(_layer(model, left, f"{prefix}.{2 * len(found)}"))
    return found


def _layer(model: ForeignModel, left: dict[str, Tensor], name: str) -> Layer:
    missing = [end for end in ("weight", "bias") if f"{name}.{end}" not in left]
    if missing:
        raise ModelFileError(f"{model.name} has no {name}.{missing[0]}. {_EXPECTED}")
    layer = Layer(left.pop(f"{name}.weight"), left.pop(f"{name}.bias"))
    weight, bias = tuple(layer.weight.shape), tuple(layer.bias.shape)
    if len(weight) != 2 or min(weight) < 1 or bias != weight[:1]:
        raise ModelFileError(
            f"{name} in {model.name} has weights of shape {weight} and biases of shape {bias}; a "
            "layer has [out, in] and [out]. The file is damaged: save the model again."
        )
    return layer


def _check(model: ForeignModel, algo: str, layers: Layers) -> None:
    actor, critic = (
        [*layers.shared, *layers.actor, layers.decide],
        [*layers.shared, *layers.critic, layers.judge],
    )
    for network in (actor, critic):
        for before, after in pairwise(network):
            if after.weight.shape[1] != len(before.bias):
                raise ModelFileError(
                    f"{model.name} has a layer of {len(before.bias)} units before one that takes "
                    f"{after.weight.shape[1]}. The file is damaged: save the model again."
                )
        if len(network) < 2:
            raise ModelFileError(
                f"{model.name} has a network without a hidden layer; Stoker's have one at least."
            )
    if actor[0].weight.shape[1] != critic[0].weight.shape[1]:
        raise ModelFileError(f"In {model.name}, actor and critic do not see the same.")
    ends = len(layers.decide.bias), len(layers.judge.bias)
    if ends[1] != (ends[0] if algo == "dqn" else 1):
        raise ModelFileError(f"{model.name} has {ends[1]} values for {ends[0]} actions.")
    if algo == "dqn" and _widths(actor) != _widths(critic):
        raise ModelFileError(f"The target network of {model.name} has other layers.")
    log_std = layers.log_std
    if log_std is not None and tuple(log_std.shape) != (ends[0],):
        raise ModelFileError(
            f"{model.name} has deviations of shape {tuple(log_std.shape)}, not one for each of "
            f"{ends[0]} actions, as where it explores by state-dependent noise. {_EXPECTED}"
        )
    for name, value in _named(layers):
        if not bool(torch.isfinite(value).all()):
            raise ModelFileError(
                f"{name} in {model.name} is not finite; it was spoilt in training."
            )


def _named(layers: Layers) -> Iterator[tuple[str, Tensor]]:
    yield from trunk("actor", layers.shared + layers.actor).items()
    yield from trunk("critic", layers.shared + layers.critic).items()
    yield from end("decide", layers.decide).items()
    yield from end("judge", layers.judge).items()
    if layers.log_std is not None:
        yield "log_std", layers.log_std


def trunk(name: str, layers: list[Layer]) -> Mapping[str, Tensor]:
    """Hidden layers by the names that `nn.Encoder` has for them."""
    return {
        key: value
        for place, layer in enumerate(layers)
        for key, value in end(f"{name}.trunk.{2 * place}", layer).items()
    }


def end(name: str, layer: Layer) -> Mapping[str, Tensor]:
    """One layer by the names that torch has for its parts."""
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
