"""Whether a tensor environment keeps its contract, and whether a step could be captured; in words.

A few steps are taken on a few rows while every call to torch is looked at.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stoker.pools.actions import ActionDecoder
from stoker.pools.draws import TensorRng, key_of
from stoker.pools.tensor import Blamed
from stoker.pools.values import limits, rule
from stoker.types import (
    PLAIN,
    DeviceObs,
    EnvSpec,
    LeafSpec,
    Rng,
    TensorEnv,
    TensorState,
    TensorStep,
)

_ROWS, _STEPS, _LOOKED_AT = 5, 4, 2
_TORCH, _OURS = str(Path(torch.__file__).parent), str(Path(__file__).parent)

_FETCHES = "fetches values to the host, which waits for the GPU: keep them in tensors"
_DECIDES = "decides in Python by values in a tensor, which waits for the GPU: use torch.where"
_SIZED = "has a result whose size depends on values: use torch.where, or a product with the mask"
_MAKES = "makes a tensor of Python's values, which waits for the GPU: make it once and keep it"
_DRAWS = "draws from torch's own generator: draw from `rng`, so that runs can be repeated"
_BREAKS = {
    **dict.fromkeys(("item", "tolist", "numpy", "cpu", "__int__", "__float__"), _FETCHES),
    **dict.fromkeys(("__index__", "__format__", "__repr__"), _FETCHES),
    **dict.fromkeys(("__bool__", "equal", "allclose", "__contains__"), _DECIDES),
    **dict.fromkeys(("nonzero", "argwhere", "unique", "masked_select"), _SIZED),
    **dict.fromkeys(("tensor", "as_tensor", "asarray", "from_numpy"), _MAKES),
    **dict.fromkeys(("rand", "randn", "randint", "randperm", "normal", "bernoulli"), _DRAWS),
    **dict.fromkeys(("rand_like", "randn_like", "randint_like", "multinomial"), _DRAWS),
    **dict.fromkeys(("uniform_", "normal_", "random_", "bernoulli_", "exponential_"), _DRAWS),
}

_unseen = torch._C.DisableTorchFunction
"""A block in which our own looks at values are not taken for the environment's."""


class Findings(NamedTuple):
    """Sentences: what gives wrong results, and what breaks a capture, so that steps are slow."""

    wrong: list[str]
    breaks: list[str]


def check_tensor_env(
    env: TensorEnv, spec: EnvSpec, device: torch.device, check_bounds: bool = True
) -> Findings:
    """Take a few steps and look. What the environment itself raises is raised on."""
    looks, decode = _Looks(), ActionDecoder(spec.action, device)
    walk = _walk(Blamed(env, spec.name), spec, decode, device, check_bounds)
    with torch.no_grad(), looks:
        first = next(walk, None)  # the next would be of the same fault
    breaks = list(looks.found)
    if first is not None:  # what a row becomes may depend on nothing but the next number drawn
        first = next((found for found in breaks if _DRAWS in found), first)
    return Findings([] if first is None else [first], [found for found in breaks if found != first])


def _walk(
    env: TensorEnv,
    spec: EnvSpec,
    decode: ActionDecoder,
    device: torch.device,
    check_bounds: bool,
) -> Iterator[str]:
    ids = torch.arange(_ROWS, device=device)
    keys = key_of(ids * 0)

    def rng(step: int, rows: Any = slice(None)) -> Rng:
        return TensorRng(keys[rows], ids[rows], ids[0] * 0 + step)

    for n in (_ROWS - 2, _ROWS):
        state = env.initial(n, rng(0, slice(n)))
        yield from _state_problems(state, n, device, "initial")
    kinds = {name: (value.shape, value.dtype) for name, value in state.items()}
    for step in range(1, _STEPS):
        before = {name: value.clone() for name, value in state.items()}
        yield from _seen_problems(_by_leaf(env.observe(state)), spec, device, check_bounds)
        yield from _changes(before, state, "observe")
        action = decode(_some_actions(spec, step, device))
        led_to = env.step(state, action, rng(step))
        yield from _changes(before, state, "step")
        if not isinstance(led_to, TensorStep):
            yield f"step gives {_kind(led_to)}; expected a stoker.types.TensorStep."
        yield from _state_problems(led_to.state, _ROWS, device, "step")
        found = {name: (value.shape, value.dtype) for name, value in led_to.state.items()}
        if found != kinds:
            yield _difference(kinds, found)
        yield from _outcome_problems(led_to._asdict(), spec, device)
        alike = env.step(_all_like(state), _all_like({"": action})[""], rng(step))
        pairs = list(zip(_rows_of(env, led_to), _rows_of(env, alike), strict=True))
        if not all(_same(mine[_LOOKED_AT], other[_LOOKED_AT]) for mine, other in pairs):
            yield (
                "What a row becomes depends on the other rows of the batch: beside others it "
                "became something else. Reduce over the dimensions of a row alone, never over "
                "the first."
            )
        state = led_to.state


def _rows_of(env: TensorEnv, step: TensorStep) -> list[Tensor]:
    """Everything that a step gives, and what is seen after it."""
    outcome = [step.reward, step.terminated, step.truncated]
    named = (step.state, step.metrics, _by_leaf(env.observe(step.state)))
    return outcome + [group[name] for group in named for name in sorted(group)]


def _all_like(state: TensorState) -> TensorState:
    """Every row as the one that is looked at: in a batch of the same size, so of the same bits."""
    return {n: v[_LOOKED_AT : _LOOKED_AT + 1].expand_as(v).clone() for n, v in state.items()}


def _changes(before: TensorState, now: TensorState, by: str) -> Iterator[str]:
    for name, value in before.items():
        if not _same(value, now[name]):
            yield (
                f"{by} changes state[{name!r}] in place; return new tensors: the old state is "
                "still needed."
            )


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, where NaN is NaN. As all looks at values it is on the host: each kind of look
    would have a GPU load a kernel that nobody else needs."""
    with _unseen():
        return torch.allclose(one.cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True)


def _by_leaf(seen: Tensor | DeviceObs) -> DeviceObs:
    return {PLAIN: seen} if isinstance(seen, Tensor) else seen


def _some_actions(spec: EnvSpec, step: int, device: torch.device) -> Tensor:
    """Policy actions [n, A] that differ by row and step."""
    with _unseen():
        place = torch.arange(_ROWS * spec.action.width).view(_ROWS, -1) + step
        if spec.action.continuous:
            return torch.cos(place.float()).to(device)
        return (place % torch.tensor(spec.action.nvec or (2,))).to(device)


def _state_problems(state: Any, rows: int, device: torch.device, of: str) -> Iterator[str]:
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        yield f"{of} gives {_kind(state)} as the state; expected a dict of tensors [n, ...]."
        return
    for name, value in state.items():
        yield from _place_problems(value, device, f"state[{name!r}] of {of}")
        if value.dim() == 0 or len(value) != rows:
            yield (
                f"state[{name!r}] of {of} has the shape {tuple(value.shape)} for {rows} "
                "environments; its first dimension must be theirs."
            )
        if value.dtype == torch.bfloat16:
            yield f"state[{name!r}] of {of} is of bfloat16, which is not saved; use float32."


def _seen_problems(
    seen: Any, spec: EnvSpec, device: torch.device, check_bounds: bool
) -> Iterator[str]:
    if not isinstance(seen, Mapping) or set(seen) != set(spec.observation):
        names = list(seen) if isinstance(seen, Mapping) else _kind(seen)
        yield f"observe gives {names}; the observation space has {list(spec.observation)}."
        return
    for leaf, expected in spec.observation.items():
        what = "What observe gives" + ("" if leaf == PLAIN else f" as {leaf!r}")
        yield from _value_problems(seen[leaf], expected, device, what, check_bounds)


def _value_problems(
    value: Tensor, expected: LeafSpec, device: torch.device, what: str, check_bounds: bool
) -> Iterator[str]:
    yield from _tensor_problems(value, (_ROWS, *expected.shape), expected.dtype, device, what)
    first, last = expected.start, expected.start + expected.n
    with _unseen():
        seen = value.cpu()
        if expected.kind == "vector":
            low, high = limits(expected, check_bounds)
            held = seen.numpy()
            if not np.isfinite(held).all():
                yield f"{what} holds NaN or infinity."
            elif not ((held >= low) & (held <= high)).all():
                found = f"it goes from {held.min():.6g} to {held.max():.6g}"
                yield f"{what} is not {rule(expected, held)}: {found}."
        if expected.kind == "discrete" and not bool(((seen >= first) & (seen < last)).all()):
            yield f"{what} holds categories that are not from {first} to {last - 1}."


def _outcome_problems(
    given: Mapping[str, Any], spec: EnvSpec, device: torch.device
) -> Iterator[str]:
    fields = {"reward": "float32", "terminated": "bool", "truncated": "bool"}
    for name, dtype in fields.items():
        yield from _tensor_problems(given[name], (_ROWS,), dtype, device, f"{name} of step")
    metrics = given["metrics"]
    if not isinstance(metrics, Mapping):
        yield f"metrics of step is {_kind(metrics)}; expected a dict of tensors [n]."
        return
    if set(metrics) != set(spec.metric_names):
        yield (
            f"step gives the metrics {sorted(metrics)}; metric_names declares "
            f"{sorted(spec.metric_names)}."
        )
    for name, value in metrics.items():
        yield from _tensor_problems(value, (_ROWS,), "float32", device, f"metrics[{name!r}]")
    with _unseen():
        if not bool(given["reward"].cpu().isfinite().all()):
            yield "reward of step holds NaN or infinity."


def _tensor_problems(
    value: Any, shape: tuple[int, ...], dtype: str, device: torch.device, what: str
) -> Iterator[str]:
    if not isinstance(value, Tensor):
        yield f"{what} is {_kind(value)}; expected a tensor of {dtype}, {list(shape)}."
        return
    yield from _place_problems(value, device, what)
    if tuple(value.shape) != shape:
        yield f"{what} has the shape {list(value.shape)}; expected {list(shape)}."
    if value.dtype != getattr(torch, dtype):
        found = str(value.dtype).removeprefix("torch.")
        yield f"{what} is of {found}; expected {dtype}."


def _place_problems(value: Tensor, device: torch.device, what: str) -> Iterator[str]:
    if value.device.type != device.type:
        yield (
            f"{what} is on the {value.device.type}, and the run on the {device.type}: make "
            "tensors from those that are given (torch.zeros_like, rng), not on a device of your "
            "own choice."
        )


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """How a state changed that must stay as it is."""
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            told = [
                "missing" if kind is None else f"{list(kind[0])} {kind[1]}"
                for kind in (before.get(name), after.get(name))
            ]
            return (
                f"state[{name!r}] is {told[0]} before a step and {told[1]} after it; shapes and "
                "types must stay."
            )
    raise AssertionError("nothing changed")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


class _Looks(TorchFunctionMode):
    """Notes calls that would break a capture, with the line of the environment they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self._look(getattr(func, "__name__", ""), args)
        return func(*args, **(kwargs or {}))

    def _look(self, name: str, args: Any) -> None:
        why = _BREAKS.get(name)
        if name in ("__getitem__", "__setitem__") and _has_mask(args[1]):
            name, why = "an index", "selects by a mask, " + _SIZED.replace("has", "with")
        if name == "where" and len(args) == 1:
            why = _SIZED
        if name == "to" and "cpu" in map(str, args[1:]):
            why = _FETCHES
        where = None if why is None else _line_of_theirs()
        if where is not None:
            self.found[f"{where} {why}."] = None


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _line_of_theirs() -> str | None:
    """The innermost line that is neither torch's nor ours here; None where there is none."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OURS)):
            source = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}, line {frame.f_lineno} ({source})"
        frame = frame.f_back  # type: ignore[assignment]
    return None
