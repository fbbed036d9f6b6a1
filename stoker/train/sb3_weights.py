"""The weights of a model of Stable-Baselines3 as Stoker's, once its spaces are those of the
environment."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.errors import ModelFileError
from stoker.runs.sb3_stats import ForeignStats
from stoker.runs.sb3_zip import ForeignModel
from stoker.train.sb3_layers import Layer, Layers, end, trunk
from stoker.types import PLAIN, ActionSpec, EnvSpec, LeafSpec

_KINDS = {
    "discrete": "Discrete",
    "multi_discrete": "MultiDiscrete",
    "multi_binary": "MultiBinary",
    "box": "Box",
}
_EPSILON = 1e-8


def weights_of(layers: Layers, algo: str, spec: EnvSpec) -> dict[str, Tensor]:
    """The policy's, and DQN's target's, by the names that a checkpoint has for them.

    Stoker's Gaussians are on a scale of -1 to 1 where an action has bounds, and those of
    Stable-Baselines3 on the environment's own: the last layer and the deviations are rescaled, so
    that means and deviations are the same in the environment.
    """
    hidden = layers.shared + layers.actor
    if algo == "dqn":
        own = {**trunk("encoder", hidden), **end("judge", layers.decide)}
        target = {**trunk("encoder", layers.critic), **end("judge", layers.judge)}
        return _in_room("policy/", own) | _in_room("learner/target.", target)
    decide, log_std = layers.decide, layers.log_std
    if spec.action.continuous:
        assert log_std is not None, "spaces were compared"
        decide, log_std = _rescaled(decide, log_std, spec.action)
    own = {
        **trunk("actor", hidden),
        **trunk("critic", layers.shared + layers.critic),
        **end("decide", decide),
        **end("judge", layers.judge),
        **({} if log_std is None else {"head.log_std": log_std}),
    }
    return _in_room("policy/", own)


def _in_room(prefix: str, named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value.clone() for name, value in named.items()}


def _rescaled(decide: Layer, log_std: Tensor, action: ActionSpec) -> tuple[Layer, Tensor]:
    """From the environment's scale to that of `pools.spaces.ActionCodec`; in float64."""
    low, high = torch.tensor(action.low).double(), torch.tensor(action.high).double()
    bounded = low.isfinite() & high.isfinite() & (high > low)
    centre = torch.where(bounded, (low + high) / 2, 0.0)
    half = torch.where(bounded, (high - low) / 2, 1.0)
    weight = decide.weight.double() / half[:, None]
    bias = (decide.bias.double() - centre) / half
    return Layer(weight.float(), bias.float()), (log_std.double() - half.log()).float()


def statistics_of(stats: ForeignStats, model: ForeignModel, spec: EnvSpec) -> dict[str, Tensor]:
    """Running statistics by the names that a checkpoint has for them."""
    named: dict[str, Tensor] = {}
    if stats.obs is not None:
        leaf, (mean, variance, seen) = spec.observation.get(PLAIN), stats.obs
        if leaf is None or leaf.kind != "vector":
            raise ModelFileError(
                f"The statistics are of a vector, and {spec.name} shows {_described(spec)}. Import "
                f"{model.name} without --normalize, and normalise in a wrapper."
            )
        width = math.prod(leaf.shape)
        if mean.shape != (width,) or variance.shape != (width,):
            raise ModelFileError(
                f"The statistics are of {mean.size} numbers, and an observation of {spec.name} has "
                f"{width}. Name the statistics that {model.name} was trained with."
            )
        named |= _moments("policy/moments.0", mean, variance, np.array(seen))
    if stats.returns is not None:
        spread, count = stats.returns
        of_one = (np.zeros((1, 1)), np.full((1, 1), spread), np.full(1, count))
        named |= _moments("scaler/moments", *of_one)
    return named


def _moments(
    prefix: str, mean: np.ndarray, variance: np.ndarray, count: np.ndarray
) -> dict[str, Tensor]:
    scale = 1 / np.sqrt(variance + _EPSILON)
    wide = {"mean": mean, "variance": variance, "count": count}
    narrow = {"centre": mean, "scale": scale}
    return {f"{prefix}.{k}": torch.from_numpy(np.array(v)).double() for k, v in wide.items()} | {
        f"{prefix}.{k}": torch.from_numpy(np.array(v)).float() for k, v in narrow.items()
    }


def check_spaces(model: ForeignModel, layers: Layers, spec: EnvSpec) -> None:
    """ModelFileError unless the network is one for the environment, as far as its file says."""
    problem = _wrong_observation(model, layers, spec) or _wrong_action(model, layers, spec.action)
    if problem:
        raise ModelFileError(
            f"{model.name} is not a model for {spec.name}: {problem}. Name the environment that it "
            "was trained on with --env, wrapped as it was then."
        )


def _wrong_observation(model: ForeignModel, layers: Layers, spec: EnvSpec) -> str | None:
    leaves = spec.observation
    if any(leaf.kind == "image" for leaf in leaves.values()):
        return (
            "the environment shows images, which Stoker convolves, and the model has no layers for"
        )
    width = sum(leaf.n or math.prod(leaf.shape) for leaf in leaves.values())
    taken = (layers.shared + layers.actor)[0].weight.shape[1]
    if taken != width:
        return f"the model takes {taken} numbers, and the environment shows {_described(spec)}"
    said = _said(model, "observation_space")
    kind = "Dict" if PLAIN not in leaves else _kind_of(leaves[PLAIN])
    if said.get("kind", kind) != kind:
        return f"the model saw a {said['kind']} space, and the environment shows {_described(spec)}"
    names = str(said.get("spaces", ""))
    places = [names.find(repr(name)) for name in leaves] if kind == "Dict" and names else []
    if -1 in places or places != sorted(places):
        return f"the model saw {names:.200}, and the environment shows {_described(spec)}"
    return None


def _wrong_action(model: ForeignModel, layers: Layers, action: ActionSpec) -> str | None:
    kind, width = _KINDS[action.kind], sum(action.nvec) or action.width
    puts_out = len(layers.decide.bias)
    said = _said(model, "action_space")
    theirs = said.get("kind", kind)
    if theirs != kind or (layers.log_std is not None) != action.continuous:
        known = theirs if theirs != kind else "Box" if layers.log_std is not None else "discrete"
        return f"the model's actions are {known}, and the environment's {kind}"
    if puts_out != width:
        return f"the model puts out {puts_out} numbers, and the environment's actions take {width}"
    if any(action.start):
        return f"the environment's actions begin at {action.start}, which its library passes over"
    for name, ours in (("nvec", action.nvec), ("low", action.low), ("high", action.high)):
        found = _numbers(said.get(name))
        if found is not None and not _alike(found, ours):
            return f"the model's action space has {name} {said[name]}, and the environment's {ours}"
    return None


def _said(model: ForeignModel, which: str) -> dict[str, Any]:
    """What the file says of a space in words, and of what `kind` it is; empty if nothing."""
    space = model.facts.get(which)
    if not isinstance(space, dict):
        return {}
    kind = re.fullmatch(r"<class '[\w.]*\.(\w+)'>", str(space.get(":type:")))
    return {**space, "kind": kind[1]} if kind else dict(space)


def _numbers(text: Any) -> list[float] | None:
    """Of an array that was printed; None where there is none, or it was printed in part."""
    if not isinstance(text, str) or "..." in text:
        return None
    try:
        return [float(word) for word in re.sub(r"[\[\],]", " ", text).split()]
    except ValueError:
        return None


def _alike(found: list[float], ours: tuple[float, ...]) -> bool:
    return len(found) == len(ours) and bool(np.allclose(found, ours, rtol=1e-5, atol=1e-7))


def _kind_of(leaf: LeafSpec) -> str:
    return "Discrete" if leaf.kind == "discrete" else "Box"


def _described(spec: EnvSpec) -> str:
    return ", ".join(
        f"{'' if name == PLAIN else repr(name) + ' '}{leaf.kind} of {leaf.n or leaf.shape}"
        for name, leaf in spec.observation.items()
    )
