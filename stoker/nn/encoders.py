"""From observations to features: vectors, images, categories, and dicts of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stoker.errors import SpaceError
from stoker.types import DeviceObs, LeafSpec

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}
_IMAGE_FEATURES = 256
_SMALLEST_FOR_LARGE_STRIDES = 36


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers from sizes[0] to sizes[-1], each followed by the activation."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class ImageEncoder(nn.Module):
    """Convolutions over a uint8 image: DQN's strides from 36 pixels on, 3x3 ones below."""

    def __init__(self, leaf: LeafSpec) -> None:
        super().__init__()
        self._leaf = leaf
        channels, height, width = self._channels_first(torch.zeros(1, *leaf.shape)).shape[1:]
        if min(height, width) < 5:
            raise SpaceError(
                f"An image of {height} x {width} pixels is too small to convolve (5 x 5 at least);"
                " make the space a float Box, so that it is read as a vector."
            )
        shapes = (
            ((32, 8, 4), (64, 4, 2), (64, 3, 1))
            if min(height, width) >= _SMALLEST_FOR_LARGE_STRIDES
            else ((16, 3, 1), (32, 3, 2))
        )
        layers: list[nn.Module] = []
        for out, kernel, stride in shapes:
            layers += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
            channels = out
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            flat = self.convolutions(self._channels_first(torch.zeros(1, *leaf.shape))).shape[1]
        self.project = nn.Sequential(nn.Linear(flat, _IMAGE_FEATURES), nn.ReLU())

    def _channels_first(self, image: Tensor) -> Tensor:
        if image.dim() == 3:
            return image.unsqueeze(1)
        return image.movedim(-1, 1) if self._leaf.channels_last else image

    def forward(self, image: Tensor) -> Tensor:
        scaled = self._channels_first(image).to(torch.float32) / 255.0
        return self.project(self.convolutions(scaled))


class Encoder(nn.Module):
    """All leaves to one feature vector: images convolved, categories one-hot, then an MLP."""

    def __init__(
        self, leaves: Mapping[str, LeafSpec], network_arch: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        self._leaves = dict(leaves)
        images = {name: leaf for name, leaf in leaves.items() if leaf.kind == "image"}
        self.images = nn.ModuleDict({_key(n): ImageEncoder(leaf) for n, leaf in images.items()})
        width = sum(
            _IMAGE_FEATURES if leaf.kind == "image" else leaf.n or prod(leaf.shape)
            for leaf in leaves.values()
        )
        self.trunk = mlp((width, *network_arch), activation)

    def forward(self, obs: DeviceObs) -> Tensor:
        parts = []
        for name, leaf in self._leaves.items():
            if leaf.kind == "image":
                parts.append(self.images[_key(name)](obs[name]))
            elif leaf.kind == "discrete":
                parts.append(F.one_hot(obs[name].long(), leaf.n).to(torch.float32))
            else:
                parts.append(obs[name].reshape(len(obs[name]), -1))
        return self.trunk(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))


def _key(name: str) -> str:
    """A leaf's name as a module's, one to one: torch forbids dots and empty names."""
    return "leaf_" + name.replace("_", "__").replace(".", "_dot_")
