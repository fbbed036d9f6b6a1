"""Who is compared with us, and what each of them cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from bench.record import named

TWO, MANY, NUMBERS = "two actions", "several discrete actions", "actions that are numbers"
TENSORS, HOST, WAITS = "tensors", "host", "waits"

_ONE_SIGN = "the sign of one number decides between the two actions, as it knows numbers alone"
_NO_COLUMNS = "it has no discrete actions; the sign of a number can decide between two, not nine"
_OWN_ENVS = "its environments are part of its program, and this one is not written in JAX"


_APART = ("elegantrl", "rl-games")
"""Packages that want old versions of what others need, and do without them."""


class Peer(NamedTuple):
    """A trainer."""

    label: str
    module: str
    """In `bench.peers`."""
    package: str | None
    """As it is installed; None where it is written here."""
    imported: tuple[str, ...]
    """Modules that it cannot do without."""
    cannot: Mapping[str, str] = {}
    """Kinds of action and of environment, and why not."""
    remarks: Mapping[str, str] = {}
    """Likewise, what it does otherwise than the others."""
    own: Mapping[str, str] = {}
    """What its documents advise for speed, where that differs from what all are given, by the kind
    of environment it is for."""

    @property
    def name(self) -> str:
        """With its version."""
        return named(self.package) if self.package else self.label


PEERS: Mapping[str, Peer] = {
    "sb3": Peer(
        "Stable-Baselines3",
        "sb3_ppo",
        "stable-baselines3",
        ("stable_baselines3",),
        remarks={TENSORS: "what it collects lies on the host, so every step crosses over"},
        own={HOST: "its networks on the CPU", WAITS: "its networks on the CPU"},
    ),
    "skrl": Peer("skrl", "skrl", "skrl", ("skrl",)),
    "rsl_rl": Peer(
        "RSL-RL",
        "rsl_rl",
        "rsl-rl-lib",
        ("rsl_rl", "tensordict"),
        cannot={MANY: _NO_COLUMNS},
        remarks={TWO: _ONE_SIGN},
        own={TENSORS: "compiled"},
    ),
    "rl_games": Peer("rl_games", "rl_games", "rl-games", ("rl_games",)),
    "elegantrl": Peer(
        "ElegantRL",
        "elegantrl",
        "elegantrl",
        ("elegantrl",),
        cannot={
            MANY: "it has no several discrete actions, and its one discrete agent takes no vectors"
        },
        remarks={
            TWO: f"{_ONE_SIGN} where there are several environments",
            **dict.fromkeys(
                (TENSORS, HOST, WAITS),
                "actor and critic have an optimiser each, so it makes twice as many steps of those",
            ),
        },
    ),
    "cleanrl": Peer(
        "CleanRL's recipe",
        "single_file",
        None,
        (),
        remarks={HOST: "with Gymnasium's AsyncVectorEnv"},
    ),
    "jax": Peer(
        "JAX, the whole loop",
        "whole_loop_jax",
        "jax",
        ("jax",),
        cannot={MANY: _OWN_ENVS, HOST: _OWN_ENVS, WAITS: _OWN_ENVS},
    ),
    "torchrl": Peer(
        "TorchRL",
        "torch_rl",
        "torchrl",
        ("torchrl", "tensordict"),
        own={TENSORS: "its policy compiled"},
    ),
}


def why_not(peer: Peer, kinds: tuple[str, ...], lacking: str | None) -> str | None:
    """Why a peer has no place in a case of these kinds of actions and environments; None if it
    has. `lacking` is a package that the case needs and is not installed."""
    if lacking:
        return f"{lacking} is not installed, which the environment needs"
    for kind in kinds:
        if kind in peer.cannot:
            return peer.cannot[kind]
    missing = [module for module in peer.imported if find_spec(module) is None]
    if missing:
        how = f"--no-deps {peer.package}" if peer.package in _APART else "'.[peers]'"
        return f"{missing[0]} is not installed; pip install {how}"
    return None
