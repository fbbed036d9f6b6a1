"""From spaces to specs, and from policy actions to environment actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten_space

from stoker.errors import SpaceError
from stoker.pools.spaces import ActionCodec, describe
from stoker.types import ActionSpec, LeafSpec

BOX, CHOICE = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


def leaf_of(space: Any) -> LeafSpec:
    spec = describe("here", space, CHOICE, {})
    return spec.observation["obs"]


def action_of(space: Any) -> ActionSpec:
    return describe("here", BOX, space, {}).action


def refusal(observation: Any = BOX, action: Any = CHOICE, **info: Any) -> str:
    with pytest.raises(SpaceError) as caught:
        describe("here", observation, action, info)
    return str(caught.value)


@pytest.mark.parametrize(
    ("space", "kind", "shape", "dtype"),
    [
        (spaces.Box(-1, 1, (3,)), "vector", (3,), "float32"),
        (spaces.Box(-1, 1, (2, 3), np.float64), "vector", (2, 3), "float32"),
        (spaces.Box(-9, 9, (), np.int32), "vector", (), "float32"),
        (spaces.Box(0, 255, (7,), np.uint8), "vector", (7,), "float32"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "image", (84, 84), "uint8"),
        (spaces.Box(0, 255, (84, 96, 3), np.uint8), "image", (84, 96, 3), "uint8"),
        (spaces.Discrete(6), "discrete", (), "int64"),
    ],
)
def test_what_an_observation_becomes(space: Any, kind: str, shape: Any, dtype: str) -> None:
    leaf = leaf_of(space)
    assert (leaf.kind, leaf.shape, leaf.dtype) == (kind, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "last"), [((84, 96, 3), True), ((4, 84, 84), False), ((84, 84), True)]
)
def test_where_an_image_keeps_its_channels(shape: tuple[int, ...], last: bool) -> None:
    assert leaf_of(spaces.Box(0, 255, shape, np.uint8)).channels_last is last


def test_a_space_of_the_users_own_is_refused_in_words() -> None:
    assert "write a gymnasium.ObservationWrapper" in refusal(spaces.Space(shape=(2,)))


def test_a_category_keeps_its_start() -> None:
    leaf = leaf_of(spaces.Discrete(6, start=-2))
    assert (leaf.n, leaf.start) == (6, -2)


def test_a_dict_has_a_leaf_an_entry() -> None:
    space = spaces.Dict({"speed": BOX, "gear": spaces.Discrete(5)})
    spec = describe("here", space, CHOICE, {}, ["height"])
    assert {name: leaf.kind for name, leaf in spec.observation.items()} == {
        "speed": "vector",
        "gear": "discrete",
    }
    assert spec.metric_names == ("height",)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.Tuple((CHOICE, BOX)),
        spaces.Text(5),
        spaces.OneOf((CHOICE, BOX)),
        spaces.Sequence(CHOICE),
        spaces.Graph(CHOICE, None),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("within", [False, True])
def test_an_observation_that_is_refused_says_what_to_wrap_with(space: Any, within: bool) -> None:
    message = refusal(spaces.Dict({"x": space, "y": BOX}) if within else space)
    assert type(space).__name__ in message
    assert ("observation['x']" if within else "observation") in message
    helps = isinstance(flatten_space(space), spaces.Box)
    assert ("FlattenObservation" in message) is helps
    assert helps or "gymnasium.ObservationWrapper" in message


def test_a_dict_in_a_dict_is_refused() -> None:
    message = refusal(spaces.Dict({"outer": spaces.Dict({"inner": BOX})}))
    assert "observation['outer'] is a Dict inside a Dict" in message
    assert "FlattenObservation" in message


def test_an_empty_dict_is_refused() -> None:
    assert "empty Dict" in refusal(spaces.Dict({}))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 5, (2,), np.int32),
        spaces.Dict({"a": CHOICE}),
        spaces.Tuple((CHOICE, CHOICE)),
        spaces.Text(3),
        spaces.Sequence(CHOICE),
    ],
    ids=lambda space: type(space).__name__,
)
def test_an_action_that_is_refused_says_what_to_wrap_with(space: Any) -> None:
    message = refusal(action=space)
    assert f"The action space is {space}" in message
    assert "gymnasium.ActionWrapper" in message


@pytest.mark.parametrize("policy", [0, 3])
def test_discrete_counts_from_its_start(policy: int) -> None:
    space = spaces.Discrete(4, start=-1)
    spec = action_of(space)
    assert (spec.width, spec.nvec) == (1, (4,))
    encoded = ActionCodec(spec).encode(np.array([[policy], [1]]))
    assert encoded.tolist() == [policy - 1, 0]
    assert encoded.shape == (2,)
    assert space.contains(encoded[0])


def test_multi_discrete_counts_from_its_starts() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[10, -1])
    spec = action_of(space)
    assert (spec.width, spec.nvec, spec.start) == (2, (2, 3), (10, -1))
    encoded = ActionCodec(spec).encode(np.array([[0, 0], [1, 2]]))
    assert encoded.tolist() == [[10, -1], [11, 1]]
    assert space.contains(encoded[0])


def test_multi_discrete_in_two_dimensions_takes_its_shape() -> None:
    space = spaces.MultiDiscrete([[2, 3], [4, 5]])
    spec = action_of(space)
    assert spec.nvec == (2, 3, 4, 5)
    encoded = ActionCodec(spec).encode(np.array([[1, 2, 3, 4]]))
    assert encoded.tolist() == [[[1, 2], [3, 4]]]


def test_multi_binary_takes_its_shape() -> None:
    space = spaces.MultiBinary((2, 2))
    spec = action_of(space)
    assert spec.width == 4
    encoded = ActionCodec(spec).encode(np.array([[1, 0, 0, 1]]))
    assert encoded.tolist() == [[[1, 0], [0, 1]]]
    assert space.contains(encoded[0])


def boxed(low: list[float], high: list[float], actions: list[float]) -> list[float]:
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    encoded = ActionCodec(action_of(space)).encode(np.array([actions], np.float32))
    assert space.contains(encoded[0])
    return encoded[0].tolist()


def test_finite_bounds_are_covered_by_minus_one_to_one() -> None:
    assert boxed([-2] * 5, [6] * 5, [-1, 0, 1, 0.5, -0.25]) == [-2, 2, 6, 4, 1]


def test_what_lies_outside_is_clipped() -> None:
    assert boxed([-2, -2], [6, 6], [-7, 1.5]) == [-2, 6]


def test_infinite_bounds_scale_nothing() -> None:
    assert boxed([-np.inf, -np.inf], [np.inf, np.inf], [-123.5, 0.25]) == [-123.5, 0.25]


def test_half_infinite_bounds_clip_but_do_not_scale() -> None:
    inf = np.inf
    assert boxed([0, 0, -inf, -inf], [inf, inf, 5, 5], [-3, 3, -9, 9]) == [0, 3, -9, 5]


def test_each_bound_is_its_own() -> None:
    assert boxed([0, -np.inf, -1], [10, np.inf, 1], [0.5, 0.5, 0.5]) == [7.5, 0.5, 0.5]


def test_a_box_takes_its_shape_and_dtype() -> None:
    space = spaces.Box(-1, 1, (2, 1), np.float64)
    encoded = ActionCodec(action_of(space)).encode(np.zeros((5, 2), np.float32))
    assert (encoded.shape, encoded.dtype) == ((5, 2, 1), np.float64)


def test_a_box_without_dimensions_has_one_column() -> None:
    spec = action_of(spaces.Box(0, 4, ()))
    assert spec.width == 1
    assert ActionCodec(spec).encode(np.zeros((2, 1), np.float32)).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("space", "mask", "width"),
    [
        (spaces.Discrete(3), [1, 0, 1], 3),
        (spaces.Discrete(3), np.array([True, False, True]), 3),
        (spaces.MultiDiscrete([2, 3]), [1] * 5, 5),
    ],
)
def test_masks_of_the_right_size(space: Any, mask: Any, width: int) -> None:
    spec = describe("here", BOX, space, {"action_mask": mask})
    assert spec.has_mask
    assert spec.mask_width == width


def test_no_mask_has_no_width() -> None:
    assert describe("here", BOX, spaces.Discrete(3), {}).mask_width == 0


@pytest.mark.parametrize(
    ("space", "mask", "needed"),
    [(spaces.Discrete(3), [1, 1], 3), (spaces.MultiDiscrete([2, 3]), np.ones(6), 5)],
)
def test_masks_of_the_wrong_size(space: Any, mask: Any, needed: int) -> None:
    message = refusal(action=space, action_mask=mask)
    assert f"{np.shape(mask)}" in message
    assert f"needs {needed} entries" in message


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])
def test_masks_where_none_can_be(space: Any) -> None:
    assert "Masks work with Discrete and MultiDiscrete" in refusal(action=space, action_mask=[1, 1])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("comfort", "metric_names is the text 'comfort'; write metric_names = ('comfort',)."),
        (("comfort", 3), 'metric_names holds 3 (int), which is no text; write metric_names = ("'),
        (b"comfort", "metric_names holds 99 (int)"),
        (None, 'metric_names is None; write metric_names = ("comfort",)'),
    ],
)
def test_metric_names_that_are_refused_say_what_to_write(names: Any, said: str) -> None:
    with pytest.raises(SpaceError) as caught:
        describe("trial", spaces.Discrete(2), spaces.Discrete(2), {}, names)
    assert said in str(caught.value)


def test_metric_names_may_be_a_list() -> None:
    spec = describe("trial", spaces.Discrete(2), spaces.Discrete(2), {}, ["comfort", "cost"])
    assert spec.metric_names == ("comfort", "cost")


@pytest.mark.parametrize("mask", [[[True] * 3, [True] * 4], [True] * 8])
def test_a_mask_of_another_shape_is_refused(mask: Any) -> None:
    """Rows of several lengths, too."""
    seen, actions = spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 4])
    with pytest.raises(SpaceError, match="needs 7 entries in a row"):
        describe("x", seen, actions, {"action_mask": mask})


@pytest.mark.parametrize(
    ("observation", "action", "said"),
    [
        (spaces.Dict({1: BOX}), CHOICE, "has the key 1 (int); name its entries by text"),
        (spaces.Box(-1, 1, (0,)), CHOICE, "(0,), float32), which holds nothing"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2, 0))}), CHOICE, "which holds nothing"),
        (spaces.Discrete(2**40), CHOICE, "observation is Discrete(1099511627776)"),
        (BOX, spaces.Discrete(2**40), "The action space is Discrete(1099511627776)"),
        (BOX, spaces.MultiDiscrete([2, 2**40]), "1,099,511,627,776 categories"),
    ],
)
def test_what_no_network_can_take(observation: Any, action: Any, said: str) -> None:
    assert said in refusal(observation, action)
