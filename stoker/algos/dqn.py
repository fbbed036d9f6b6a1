"""Deep Q-learning: what actions turn out to be worth, and the loss of a minibatch.

Values are [B, A, W]: W choices of each of A action columns, the least number there is for one that
is impossible. Columns are branches: each learns what its choice is worth, towards one target, the
mean of the branches' own.
"""

from __future__ import annotations

from torch import Tensor

from stoker.types import QLoss, Transitions


def targets(judged: Tensor, chosen_by: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """What rows are worth, [B]: rewards, and then what the best actions are, as `judged` has it.

    The best are those of `chosen_by`: of the network that learns, if it is double, else the same.
    """
    best = chosen_by.argmax(-1, keepdim=True)
    value = judged.gather(-1, best).mean((-1, -2))
    return reward + discount * value


def loss(value: Tensor, target: Tensor, batch: Transitions) -> QLoss:
    """Huber's loss of what was chosen, over the columns and, as weighted, over the rows."""
    chosen = value.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    gap = chosen - target.unsqueeze(-1)
    near = gap.clamp(-1.0, 1.0)
    share = batch.weight / chosen.numel()
    total = (share @ (near * (gap - 0.5 * near))).sum()
    error = gap.detach().abs().mean(-1)
    metrics = {
        "train/loss": total.detach(),
        "train/q_mean": chosen.detach().mean(),
        "train/td_error": error.mean(),
    }
    return QLoss(total, error, metrics)
