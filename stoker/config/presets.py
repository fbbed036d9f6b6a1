"""Presets as data: rows that a reader can diff."""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """Sizes that go together. `cores` is what its environments need to keep stepping."""

    n_envs: int
    n_steps: int
    batch_size: int
    n_epochs: int
    network_arch: tuple[int, ...]
    cores: int
    what_for: str

    def settings(self) -> dict[str, object]:
        """The row as settings, by their names."""
        row = self._asdict()
        del row["cores"], row["what_for"]
        return row


PRESETS: dict[str, Preset] = {
    "default-cpu": Preset(1, 256, 64, 4, (128, 128), 1, "no GPU: what you get without --preset"),
    "default-gpu": Preset(8, 512, 256, 10, (256, 256), 1, "a GPU: what you get without --preset"),
    "fast": Preset(16, 256, 2048, 15, (512, 512), 4, "a first look"),
    "heavy": Preset(32, 256, 4096, 20, (1024, 512, 256), 8, "long training on a real environment"),
    "beast": Preset(64, 512, 8192, 30, (1024, 512, 512, 256), 16, "many cores, much data"),
    "max": Preset(32, 8192, 512, 30, (1024, 1024, 512, 256), 8, "slow environments, long rollouts"),
    "gpu-sim": Preset(256, 32, 4096, 5, (512, 256, 128), 1, "very many cheap environments"),
}


class ReplayPreset(NamedTuple):
    """Sizes and kinds that go together, where DQN learns."""

    n_envs: int
    n_steps: int
    batch_size: int
    buffer_size: int
    network_arch: tuple[int, ...]
    activation: str = "relu"
    ortho_init: bool = False

    def settings(self) -> dict[str, object]:
        """The row as settings, by their names."""
        return self._asdict()


REPLAY_PRESETS: dict[str, ReplayPreset] = {
    "default-cpu": ReplayPreset(16, 16, 32, 10_000, (128, 128)),
    "default-gpu": ReplayPreset(16, 16, 128, 50_000, (256, 256, 256)),
}
"""What DQN gets, by device. The other presets are sizes of PPO's rollouts."""


def default_preset(on_gpu: bool) -> str:
    """The preset that gives a device its defaults."""
    return "default-gpu" if on_gpu else "default-cpu"


def largest_that_fits(cores: int) -> str:
    """The most demanding of the guides' presets that `cores` can feed."""
    sized = [name for name in ("beast", "heavy", "fast") if PRESETS[name].cores <= cores]
    return sized[0] if sized else "default-cpu"
