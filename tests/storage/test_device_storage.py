"""A rollout whose environments wrote it: what its episodes' ends are worth."""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch
from torch import Tensor

from stoker.storage.on_device import DeviceStorage
from stoker.types import PLAIN, ActionSpec, DeviceObs, EnvSpec, LeafSpec

T, N = 5, 3
SPEC = EnvSpec(
    "made up",
    {PLAIN: LeafSpec("vector", (2,), "float32")},
    ActionSpec("discrete", (), "int64", (2,), (0,)),
)


class HalfMore:
    """V(obs) is half more than the first number seen. Counts the rows that it is asked about."""

    def __init__(self) -> None:
        self.generator, self.asked = torch.Generator(), 0

    def value(self, obs: DeviceObs) -> Tensor:
        self.asked += len(obs[PLAIN])
        return obs[PLAIN][:, 0] + 0.5

    def _never(self, *given: object) -> NoReturn:
        raise AssertionError

    draw_noise = act = act_greedily = appraise = _never


def judged(ended: Tensor) -> tuple[Tensor, int]:
    """What the final observations are worth, which are 100 at first and one more each; and how many
    rows were asked about beside what was seen at T steps and after them."""
    storage, reader = DeviceStorage(SPEC, T, N, torch.device("cpu")), HalfMore()
    storage.rollout.truncated.copy_(ended)
    storage.final_obs[PLAIN].copy_(100.0 + torch.arange(T * N).view(T, N, 1))
    found = storage.judged_by(reader, 0).final_value.clone()
    return found, reader.asked - (T + 1) * N


@pytest.mark.parametrize("rows_at_once", [N, 2 * N, 8192])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_on_a_cpu_only_those_that_were_truncated_are_judged(
    share: float, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes to the same as judging everywhere, where nobody has looked."""
    monkeypatch.setattr(DeviceStorage, "rows_at_once", rows_at_once)
    ended = torch.rand(T, N, generator=torch.Generator().manual_seed(1)) < share
    expected = torch.where(ended, 100.5 + torch.arange(T * N).view(T, N), 0.0)
    found, asked = judged(ended)
    assert torch.equal(found, expected)
    assert asked == ended.sum()
    monkeypatch.setattr(DeviceStorage, "_may_look", False)
    found, asked = judged(ended)
    assert torch.equal(found, expected)
    assert asked == T * N
