"""What a model of Stable-Baselines3 was trained with, as settings: from what its file says in words
and from the shapes of its weights."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from stoker.config.algorithms import DQNSettings
from stoker.config.check import MOST_ROWS, largest_divisor
from stoker.errors import ModelFileError
from stoker.nn.encoders import ACTIVATIONS
from stoker.runs.sb3_stats import ForeignStats
from stoker.runs.sb3_zip import ForeignModel
from stoker.train.sb3_layers import algorithm_of, layers_of, sizes_of

_OWN_POLICIES = {
    "stable_baselines3.common.policies": "tanh",
    "stable_baselines3.dqn.policies": "relu",
}
"""The activation of the policies that Stable-Baselines3 ships, where none is asked for."""
_PLAIN_EXTRACTORS = ("FlattenExtractor", "CombinedExtractor")
_MOST_ENVS = 1024
_MAY_BE_NONE = ("target_kl", "clip_range_vf")
_ALIKE = {
    "ppo": {
        **{name: name for name in ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda")},
        **{name: name for name in ("ent_coef", "vf_coef", "max_grad_norm", "target_kl")},
        **{name: name for name in ("clip_range", "clip_range_vf", "normalize_advantage")},
    },
    "dqn": {
        **{name: name for name in ("buffer_size", "batch_size", "learning_starts", "tau")},
        **{name: name for name in ("gamma", "max_grad_norm")},
        "n_steps": "n_step_return",
        "exploration_initial_eps": "epsilon_start",
        "exploration_final_eps": "epsilon_end",
        "exploration_fraction": "epsilon_fraction",
    },
}
"""By algorithm, names there and here of what means the same."""


class Origin(NamedTuple):
    """What a model was trained with."""

    settings: dict[str, Any]
    """By their names here."""
    fixed: tuple[str, ...]
    """Settings that the weights follow from, so that no flag can change them."""
    unread: list[str]
    """Settings that the file does not have as plain numbers."""
    changed: list[str]
    """What cannot be here as it was there, in sentences."""
    env_steps: int


def origin_of(
    model: ForeignModel,
    activation: str | None,
    stats: ForeignStats | None,
    update_ratio: float = DQNSettings.update_ratio,
) -> Origin:
    """Settings with which the network is the same and training goes on alike.

    `activation` is what the user says, where the file does not; and so is `update_ratio`, by which
    DQN's steps between two targets are counted in updates. ModelFileError where a policy is not one
    of PPO's or DQN's plain ones.
    """
    algo = algorithm_of(model)
    _refuse_what_is_not_plain(model)
    network = {
        **sizes_of(layers_of(model, algo)),
        "activation": _activation(model, activation),
        "normalize_obs": bool(stats and stats.obs),
        **({"normalize_reward": bool(stats and stats.returns)} if algo == "ppo" else {}),
    }
    taken, unread = _taken_over(model.facts, algo, update_ratio)
    steps = _count(model.facts.get("num_timesteps")) or 0
    seed, n_envs = _count(model.facts.get("seed")), _count(model.facts.get("n_envs")) or 1
    settings = {
        "algo": algo,
        **({"lr_schedule": "constant"} if "learning_rate" in taken else {}),
        "timesteps": max(1, steps),
        **({"seed": seed} if seed is not None else {}),
        "n_envs": min(n_envs, _MOST_ENVS),
        **taken,
        **network,
    }
    changed = _other_optimiser(model)
    if algo == "ppo":
        changed += _divide(settings)
    shaping = ("dueling", "exploration") if algo == "dqn" else ()
    return Origin(settings, ("algo", *network, *shaping), unread, changed, steps)


def _divide(settings: dict[str, Any]) -> list[str]:
    """Have minibatches divide the rollout: there, the last one may be smaller than the rest."""
    n_steps, wanted = (_count(settings.get(name)) for name in ("n_steps", "batch_size"))
    if not n_steps or not wanted or (total := settings["n_envs"] * n_steps) > MOST_ROWS:
        return []
    below = largest_divisor(total, wanted)
    above = total // largest_divisor(total, total // wanted)  # the smallest that is no smaller
    settings["batch_size"] = above if above * below < wanted**2 or below == 1 else below
    if settings["batch_size"] == wanted:
        return []
    return [
        f"batch_size is {settings['batch_size']}, and was {wanted} there: here minibatches divide "
        f"the {total:,} rows of a rollout."
    ]


def _other_optimiser(model: ForeignModel) -> list[str]:
    kwargs = _mapping(model, "policy_kwargs") or {}
    kind = str(kwargs.get("optimizer_class", "Adam")).rstrip("'>").rpartition(".")[2]
    return [] if kind == "Adam" else [f"The optimiser is Adam, and was {kind!r:.60} there."]


def _taken_over(
    facts: dict[str, Any], algo: str, update_ratio: float
) -> tuple[dict[str, Any], list[str]]:
    """What is there in numbers, by its name here; and what is not."""
    taken: dict[str, Any] = {}
    unread: list[str] = []
    for theirs, ours in {"learning_rate": "learning_rate", **_ALIKE[algo]}.items():
        if theirs not in facts:
            continue
        value = _number(facts[theirs])
        if value is None and (facts[theirs] is not None or ours not in _MAY_BE_NONE):
            unread.append(ours)
        else:
            taken[ours] = value
    if algo == "dqn":
        taken |= {"double": False, "dueling": False, "exploration": "epsilon"}
        unread.append("update_ratio")
        every = _number(facts.get("target_update_interval"))
        if every is not None:  # theirs are steps, ours are updates
            taken["target_every"] = max(1, round(every * update_ratio))
    return taken, unread


def _number(value: Any) -> Any:
    """A number or flag, also of a schedule that says in words that it is constant; else None."""
    if isinstance(value, dict):
        said = re.fullmatch(
            r"ConstantSchedule\(val=([\d.e+-]+)\)", str(value.get("value_schedule"))
        )
        try:
            value = float(said[1]) if said else None
        except ValueError:
            return None
    try:
        plain = isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number past all floats
        plain = False
    return value if plain else None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 2**63 else None


def _activation(model: ForeignModel, said: str | None) -> str:
    """As the file has it in words; by the defaults of a policy that ships; or as the user says."""
    kwargs, policy = _mapping(model, "policy_kwargs"), _mapping(model, "policy_class")
    if kwargs is not None and "activation_fn" in kwargs:
        kind = str(kwargs["activation_fn"]).rstrip("'>").rpartition(".")[2]
        names = {kind.__name__: name for name, kind in ACTIVATIONS.items()}
        if kind not in names:
            raise ModelFileError(
                f"{model.name} has the activation {kind!r:.60}; Stoker has "
                f"{', '.join(ACTIVATIONS)}. Train it anew with one of these."
            )
        return names[kind]
    module = str((policy or {}).get("__module__"))
    if kwargs is not None and module in _OWN_POLICIES:
        return _OWN_POLICIES[module]
    if said is None:
        why = (
            "names none" if kwargs is None else f"has a policy class of its own, in {module!r:.80}"
        )
        raise ModelFileError(
            f"Which activation {model.name} has is not known: it {why}. If it is a plain MLP, say "
            f"which with --activation ({', '.join(ACTIVATIONS)})."
        )
    return said


def _refuse_what_is_not_plain(model: ForeignModel) -> None:
    kwargs = _mapping(model, "policy_kwargs") or {}
    extractor = str(kwargs.get("features_extractor_class", _PLAIN_EXTRACTORS[0]))
    extractor = extractor.rstrip("'>").rpartition(".")[2]
    if extractor not in _PLAIN_EXTRACTORS:
        raise ModelFileError(
            f"{model.name} sees through a features extractor of its own, {extractor!r:.60}; only "
            f"plain MLPs ({' or '.join(_PLAIN_EXTRACTORS)}) can be imported."
        )
    if model.facts.get("use_sde") or kwargs.get("use_sde") or kwargs.get("squash_output"):
        raise ModelFileError(
            f"{model.name} explores by state-dependent noise (use_sde), which Stoker does not "
            "have. Train it anew without."
        )


def _mapping(model: ForeignModel, name: str) -> dict[str, Any] | None:
    value = model.facts.get(name)
    return value if isinstance(value, dict) else None
