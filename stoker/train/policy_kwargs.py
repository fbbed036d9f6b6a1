"""Stable-Baselines3's `policy_kwargs` as settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.errors import ConfigError
from stoker.nn.encoders import ACTIVATIONS

_SAME = {"ortho_init", "log_std_init"}


def as_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """`net_arch`, `activation_fn` and those that are called the same here, by their names here."""
    known = sorted({"net_arch", "activation_fn", *_SAME})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(
            f"policy_kwargs has {', '.join(unknown)}; Stoker knows {', '.join(known)} there."
        )
    settings = {name: given[name] for name in _SAME & set(given)}
    if "activation_fn" in given:
        settings["activation"] = activation_name(given["activation_fn"])
    return settings | (_layers(given["net_arch"]) if "net_arch" in given else {})


def activation_name(kind: Any) -> str:
    """`relu` for `torch.nn.ReLU`."""
    names = {kind: name for name, kind in ACTIVATIONS.items()}
    if not isinstance(kind, type) or kind not in names:
        theirs = ", ".join(f"torch.nn.{kind.__name__}" for kind in names)
        raise ConfigError(f"activation_fn is {kind!r}; Stoker knows {theirs}.")
    return names[kind]


def _layers(net_arch: Any) -> dict[str, Any]:
    """A list for both networks, or `{"pi": [...], "vf": [...]}`."""
    if not isinstance(net_arch, Mapping):
        return {"network_arch": net_arch}
    if set(net_arch) != {"pi", "vf"}:
        raise ConfigError(
            f"net_arch has {', '.join(map(str, net_arch)) or 'nothing'}; give the layers of both "
            'networks, {"pi": [64, 64], "vf": [64, 64]}, or one list for both.'
        )
    for name, sizes in net_arch.items():
        if not isinstance(sizes, list | tuple) or not sizes:
            raise ConfigError(
                f"net_arch has {sizes!r} for {name}; it must be a list of at least one layer."
            )
    pi, vf = list(net_arch["pi"]), list(net_arch["vf"])
    return {"network_arch": pi, "critic_arch": [] if vf == pi else vf}
