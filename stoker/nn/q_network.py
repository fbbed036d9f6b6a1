"""The Q-network: from observations to what each action is worth, and to the one to take."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stoker.config.schema import NetworkSettings
from stoker.nn.encoders import Encoder
from stoker.nn.heads import Columns
from stoker.nn.observing import ObservingPolicy
from stoker.types import DeviceObs, EnvSpec, PolicyOutput

_FIRST_SIGMA = 0.5  # of noisy layers, over the root of their width: as their paper has it


class NoisyLinear(nn.Linear):
    """A linear layer with learned noise, factorised: a number an input and one an output."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__(wide, narrow)
        first = _FIRST_SIGMA / math.sqrt(wide)
        self.weight_sigma = nn.Parameter(torch.full((narrow, wide), first))
        self.bias_sigma = nn.Parameter(torch.full((narrow,), first))

    def noised(self, rows: Tensor, noise: Tensor) -> Tensor:
        """The layer under `noise` [in + out], of mean 0 and deviation 1."""
        shaped = noise.sign() * noise.abs().sqrt()
        inputs, outputs = shaped.split([self.in_features, self.out_features])
        weight = self.weight + self.weight_sigma * torch.outer(outputs, inputs)
        return F.linear(rows, weight, self.bias + self.bias_sigma * outputs)


class QNetwork(ObservingPolicy):
    """Encoder, and a number for each choice of each action column. Implements `types.Policy`.

    A dueling network has what the state is worth apart, and takes the mean of a column's numbers
    off them. Exploring is by chance (`epsilon`), or by noise in the last layer.
    """

    epsilon: Tensor

    def __init__(
        self,
        spec: EnvSpec,
        settings: NetworkSettings,
        normalize_obs: bool,
        dueling: bool = False,
        noisy: bool = False,
    ) -> None:
        super().__init__(spec, normalize_obs)
        sizes, nvec = settings.network_arch, spec.action.nvec
        self.encoder = Encoder(spec.observation, sizes, settings.activation)
        self.columns = Columns(nvec)
        self.leaves, self.activation = spec.observation, settings.activation
        self.dueling, self.nvec, self._noisy = dueling, nvec, noisy
        width = sum(nvec) + dueling
        self.judge = (NoisyLinear if noisy else nn.Linear)(sizes[-1], width)
        """Of the choices; and, last, of the state, where it is dueling."""
        self._keep_moments(spec)
        self.register_buffer("epsilon", torch.zeros(()))
        if settings.ortho_init:
            self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, 1.0 if module is self.judge else math.sqrt(2))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @property
    def noise_width(self) -> int:
        """Numbers that `forward` takes as noise; 0 where it takes none."""
        return self.judge.in_features + self.judge.out_features if self._noisy else 0

    def forward(self, obs: DeviceObs, noise: Tensor | None = None) -> Tensor:
        """What each choice is worth [n, sum of choices], under `noise` [noise_width] or without."""
        features = self.encoder(self.normalised(obs))
        if noise is not None and isinstance(self.judge, NoisyLinear):
            raw = self.judge.noised(features, noise)
        else:
            raw = self.judge(features)
        return self._joined(raw) if self.dueling else raw

    def _joined(self, raw: Tensor) -> Tensor:
        gains, worth = raw[:, :-1], raw[:, -1:]
        parts = gains.split(self.nvec, dim=1) if len(self.nvec) > 1 else (gains,)
        centred = [part - part.mean(1, keepdim=True) for part in parts]
        return worth + (torch.cat(centred, 1) if len(parts) > 1 else centred[0])

    def draw_noise(self, rows: int) -> Tensor:
        """A number that decides whether to explore, and one for each choice: [rows, 1 + ...]. Of a
        noisy network, its noise: [rows, noise_width]."""
        generator, device = self.generator, self.generator.device
        if self._noisy:
            return torch.randn(rows, self.noise_width, generator=generator, device=device)
        width = 1 + math.prod(self.columns.shape)
        return torch.rand(rows, width, generator=generator, device=device)

    @torch.no_grad()
    def act(self, obs: DeviceObs, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        if self._noisy:
            # One draw for all who act at once: it is the network that is noisy, not each of them.
            choices = self.columns(self(obs, noise[0]), action_mask)
            return PolicyOutput(choices.argmax(-1), noise.new_zeros(len(noise)))
        return self.decided(self(obs), action_mask, noise)

    def decided(self, raw: Tensor, action_mask: Tensor | None, noise: Tensor) -> PolicyOutput:
        """The best actions by `raw` [n, sum of choices]; some by chance, as `epsilon` says."""
        choices = self.columns(raw, action_mask)
        chance, lots = noise[:, :1], noise[:, 1:].unflatten(1, self.columns.shape)
        if action_mask is not None or self.columns.ragged:
            lots = lots.masked_fill(choices == torch.finfo(choices.dtype).min, -1.0)
        action = torch.where(chance < self.epsilon, lots.argmax(-1), choices.argmax(-1))
        return PolicyOutput(action, chance[:, 0])

    @torch.no_grad()
    def act_greedily(self, obs: DeviceObs, action_mask: Tensor | None) -> Tensor:
        return self.columns(self(obs), action_mask).argmax(-1)

    @torch.no_grad()
    def appraise(
        self, obs: DeviceObs, action_mask: Tensor | None, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the best actions are worth, [n]; of chances nothing is kept."""
        value = self.columns(self(obs), action_mask).amax(-1).mean(-1)
        return value, torch.zeros_like(value)

    @torch.no_grad()
    def value(self, obs: DeviceObs) -> Tensor:
        return self.columns(self(obs), None).amax(-1).mean(-1)
