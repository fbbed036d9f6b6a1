"""The sum tree and the priorities, against sums and probabilities that NumPy works out plainly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.kernels.sum_tree import SumTree
from stoker.storage.priorities import Priorities

CPU = torch.device("cpu")
weights = st.one_of(st.just(0.0), st.floats(2**-10, 2**10, width=32))
seeds = st.integers(0, 2**32 - 1)


def tree_of(values: list[float]) -> SumTree:
    tree = SumTree(len(values), CPU)
    tree.set(torch.arange(len(values)), torch.tensor(values))
    return tree


@given(values=st.lists(weights, min_size=1, max_size=300), seed=seeds)
def test_a_row_is_found_where_the_running_sum_passes(values: list[float], seed: int) -> None:
    tree, sums = tree_of(values), np.cumsum(np.array(values, np.float64))
    if sums[-1] == 0:
        return
    mass = np.random.default_rng(seed).uniform(0, sums[-1], 200)
    masses = torch.from_numpy(mass).float()
    found = torch.cat([tree.find(one) for one in masses.split(1)]).numpy()  # level by level
    at_once = tree.find(masses).numpy()  # which sums everything up
    expected = np.searchsorted(sums, mass, side="right")
    # Where sums are rounded otherwise, a neighbour may be found; never a row without a weight.
    edge = np.abs(sums[np.minimum(expected, len(values) - 1)] - mass) < 1e-4 * sums[-1]
    edge |= np.abs(sums[np.maximum(expected - 1, 0)] - mass) < 1e-4 * sums[-1]
    for some in (found, at_once):
        assert np.array_equal(some[~edge], expected[~edge])
        assert (np.array(values)[some] > 0).all()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 4097, 300_000])
def test_the_total_is_the_sum_and_the_ends_are_found(size: int) -> None:
    tree = SumTree(size, CPU)
    tree.set(torch.arange(size), torch.ones(size))
    assert float(tree.total()) == size
    ends = torch.tensor([0.0, size - 0.5, float(size), 2.0 * size])
    expected = [0, size - 1, size - 1, size - 1]
    assert tree.find(ends).tolist() == expected
    assert [int(tree.find(end[None])) for end in ends] == expected


@given(
    size=st.integers(1, 5000),
    updates=st.lists(st.lists(st.tuples(seeds, weights), min_size=1, max_size=40), max_size=5),
)
def test_parents_are_the_sums_of_their_children_whatever_is_written(
    size: int, updates: list[list[tuple[int, float]]]
) -> None:
    tree, plain = SumTree(size, CPU), np.zeros(size, np.float32)
    for update in updates:
        once = {row % size: weight for row, weight in update}
        plain[list(once)] = list(once.values())
        doubled = [*once, *once]  # a row that is there twice, with one weight
        tree.set(torch.tensor(doubled), torch.tensor([once[row] for row in doubled]))
    assert np.array_equal(tree.levels[0][:size].numpy(), plain)
    for below, above in zip(tree.levels, tree.levels[1:], strict=False):
        sums = below.view(-1, 64).sum(1)
        assert torch.equal(above[: len(sums)], sums)
        assert not above[len(sums) :].any()
    rebuilt = SumTree(size, CPU)
    rebuilt.levels[0][:size] = torch.from_numpy(plain)
    rebuilt.rebuild()
    assert all(torch.equal(a, b) for a, b in zip(tree.levels, rebuilt.levels, strict=True))


@given(
    errors=st.lists(st.floats(0, 100, width=32), min_size=2, max_size=100),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
    seed=seeds,
)
def test_priorities_probabilities_and_weights_are_those_of_the_paper(
    errors: list[float], alpha: float, beta: float, seed: int
) -> None:
    n, priorities, yes = len(errors), Priorities(len(errors), alpha, CPU), torch.tensor(True)
    rows = torch.arange(n)
    priorities.admit(rows, torch.ones(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool))
    priorities.update(rows, torch.tensor(errors), yes)
    expected = (np.array(errors) + 1e-6) ** alpha
    assert np.allclose(priorities.tree.levels[0][:n], expected, rtol=1e-4)
    assert float(priorities.highest) == pytest.approx(max(1.0, expected.max()), rel=1e-4)
    noise = torch.rand(8, 32, generator=torch.Generator().manual_seed(seed))
    row, weight = priorities.sample(noise, torch.tensor(beta))
    plain = (1 / (n * expected / expected.sum())) ** beta
    drawn = plain[row.numpy()]
    assert np.allclose(weight, drawn / drawn.max(1, keepdims=True), rtol=1e-3)


def test_rows_are_as_likely_as_their_priorities() -> None:
    priorities = Priorities(200, 1.0, CPU)
    rows = torch.arange(200)
    priorities.admit(rows, rows % 2 == 0, torch.ones(200, dtype=torch.bool))
    priorities.update(rows[::2], torch.arange(100.0), torch.tensor(True))
    noise = torch.rand(4000, 50, generator=torch.Generator().manual_seed(0))
    row, _ = priorities.sample(noise, torch.tensor(1.0))
    shares = np.bincount(row.flatten().numpy(), minlength=200) / row.numel()
    expected = np.zeros(200)
    expected[::2] = np.arange(100.0) / np.arange(100.0).sum()
    assert not shares[1::2].any()
    assert np.abs(shares - expected).max() < 1.5e-3  # five standard errors


def test_each_share_of_the_whole_gives_one_row() -> None:
    """Of equal priorities, B draws from B rows are those B rows."""
    priorities = Priorities(32, 0.6, CPU)
    every = torch.ones(32, dtype=torch.bool)
    priorities.admit(torch.arange(32), every, every)
    row, weight = priorities.sample(torch.rand(5, 32), torch.tensor(0.5))
    assert row.tolist() == [list(range(32))] * 5
    assert weight.eq(1).all()


def test_new_rows_have_the_highest_priority_and_old_ones_keep_theirs() -> None:
    priorities, yes = Priorities(10, 1.0, CPU), torch.tensor(True)
    rows, first = torch.arange(10), torch.arange(10) < 4
    priorities.admit(rows, first, torch.ones(10, dtype=torch.bool))
    priorities.update(torch.tensor([0, 1, 2]), torch.tensor([0.5, 7.0, 2.0]), yes)
    priorities.admit(rows, rows < 6, rows == 2)
    kept = priorities.tree.levels[0][:10]
    assert kept.tolist() == pytest.approx([0.5, 7, 7, 1, 7, 7, 0, 0, 0, 0], abs=1e-5)
    priorities.admit(rows, rows < 5, torch.zeros(10, dtype=torch.bool))
    assert kept.tolist()[5] == 0


def test_an_update_that_was_not_made_changes_no_priority() -> None:
    priorities = Priorities(4, 1.0, CPU)
    every = torch.ones(4, dtype=torch.bool)
    priorities.admit(torch.arange(4), every, every)
    error = torch.tensor([1.0, torch.nan, torch.inf, 5.0])
    priorities.update(torch.arange(4), error, torch.tensor(False))
    assert priorities.tree.levels[0][:4].tolist() == [1] * 4
    assert float(priorities.highest) == 1


def test_where_nothing_may_be_sampled_nothing_counts() -> None:
    priorities = Priorities(100, 0.6, CPU)
    for size in (1, 16):
        row, weight = priorities.sample(torch.rand(size), torch.tensor(0.0))
        assert not row.any()
        assert not weight.any()
