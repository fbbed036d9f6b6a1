"""Environments whose `reset` and `step` are coroutines, for callers that are not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import gymnasium


def is_async(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment's `step` is to be awaited."""
    return inspect.iscoroutinefunction(env.unwrapped.step)


def as_blocking(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """`env`, or if its `step` is a coroutine, something that waits for it."""
    return Awaited(env) if not isinstance(env, Awaited) and is_async(env) else env


RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What an environment may raise; the last is of clients that are shut down, say."""

Outcome = Callable[[], Any]
"""What came of a coroutine: returned, or raised, when called."""


class Awaited(gymnasium.Env[Any, Any]):
    """Waits for an environment's coroutines, on an event loop of its own or on one that runs.

    Whoever is on that loop must not wait: it has the outcomes ready (`foresee`) before they are
    asked for.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.inner: Any = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.spec = env.metadata, env.spec
        self._loop, self._owns_loop = loop or asyncio.new_event_loop(), loop is None
        self._stepped: Outcome | None = None
        self._begun: Outcome | None = None

    async def foresee(self, action: Any, seed: int | None, on_reset: Callable[[], None]) -> None:
        """Step, and if that ends the episode reset to `seed`: for `step` and `reset` to give."""
        self._begun = None
        try:
            stepped = await self.inner.step(action)
            if isinstance(stepped, tuple) and len(stepped) == 5 and (stepped[2] or stepped[3]):
                on_reset()
                self._begun = await _outcome(self.inner.reset(seed=seed))
            self._stepped = lambda: stepped
        except RAISED as error:
            self._stepped = _raising(error)

    def step(self, action: Any) -> Any:
        stepped, self._stepped = self._stepped, None
        return self._wait_for(self.inner.step(action)) if stepped is None else stepped()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun()
        given = {} if options is None else {"options": options}
        return self._wait_for(self.inner.reset(seed=seed, **given))

    def render(self) -> Any:
        return self.inner.render()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        closing = self.inner.close()
        if inspect.iscoroutine(closing):
            self._wait_for(closing)
        if self._owns_loop:
            self._loop.close()

    @property
    def unwrapped(self) -> gymnasium.Env[Any, Any]:
        return self.inner.unwrapped

    def get_wrapper_attr(self, name: str) -> Any:
        return self.inner.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        return self.inner.set_wrapper_attr(name, value, force=force)

    def __del__(self) -> None:
        """Whoever only tried an environment closes it as such, and knows nothing of the loop."""
        if self._owns_loop and not self._loop.is_closed():
            self._loop.close()

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._owns_loop:
            # Not asyncio.Runner: it sets a signal handler, and the enum in `signal` that refuses
            # that handler's number writes out the last result, which may be a large array.
            return self._loop.run_until_complete(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> Outcome:
    try:
        value = await coroutine
        return lambda: value
    except RAISED as error:
        return _raising(error)


def _raising(error: BaseException) -> Outcome:
    def again() -> Any:
        raise error

    return again
