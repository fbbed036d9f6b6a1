"""What to say of an environment at fault: where, under which circumstances, what to do."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import BadValueError, EnvError, StokerError

CHECK = "Mend the environment (gymnasium.utils.env_checker.check_env finds such mistakes)."
API = {
    "reset": "Gymnasium expects reset(*, seed=None, options=None) to return (observation, info).",
    "step": (
        "Gymnasium expects step(action) to return (observation, reward, terminated, truncated, "
        "info), the info a dict: the `done` of old is now terminated (the task ended) or "
        "truncated (cut short)."
    ),
}


def blame(
    index: int, where: str, error: BaseException, seed: int | None, action: Any = None
) -> EnvError:
    """The error for an exception that environment `index` raised; call it where it is caught."""
    advice = advice_on(error, where)
    return EnvError(
        f"Environment {index} raised {type(error).__name__} in {where}(): {error}\n"
        f"{circumstances(seed, action)}\n{traceback.format_exc().rstrip()}"
        + (f"\n{advice}" if advice else "")
    )


@contextmanager
def blaming(name: str, where: str) -> Iterator[None]:
    """What is raised in here is an `EnvError` of many environments at once, which says so."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        raise EnvError(
            f"{name} raised {type(error).__name__} in {where}(): {error}\n"
            f"{traceback.format_exc().rstrip()}"
        ) from error


@contextmanager
def making(env_ids: Sequence[int]) -> Iterator[None]:
    """What is raised in here is an `EnvError`: these environments could not be made."""
    try:
        yield
    except StokerError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(
            f"Environments {', '.join(map(str, env_ids))} could not be made: "
            f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"
            f"\n{advice_on(error)}".rstrip()
        ) from error


def refusal(
    index: int, where: str, found: str, expected: str, seed: int | None, action: Any = None
) -> EnvError:
    """The error for something that environment `index` returned."""
    return BadValueError(
        f"Environment {index} returned {found} from {where}(). {expected} {CHECK}\n"
        f"{circumstances(seed, action)}"
    )


def sketch(returned: Any) -> str:
    """What came back, without its numbers."""
    if not isinstance(returned, tuple):
        return f"one {type(returned).__name__}"
    kinds = ", ".join(type(value).__name__ for value in returned)
    return f"{len(returned)} values ({kinds})"


def advice_on(error: BaseException, where: str = "") -> str:
    """What to do about an error that comes of an old API, of leaving, or of a worker's ways."""
    if isinstance(error, SystemExit):
        return (
            "sys.exit() in an environment would end the training. To end an episode, return "
            "terminated or truncated; to report a fault, raise an error that names it."
        )
    text = str(error)
    if "__main__" in text or getattr(error, "obj", None) is sys.modules["__main__"]:
        return (
            "The environment looks for something in __main__, your script, which worker "
            "processes do not run. Pass it as an argument of the environment, move it to a module "
            "that both import, or step in one process (--pool inline)."
        )
    if where == "reset" and isinstance(error, TypeError) and "unexpected keyword" in text:
        return API["reset"]
    if isinstance(error, ValueError) and "to unpack" in text:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if "gymnasium" in raised_in.parts:  # a wrapper's, so not the environment's own business
            return API[where]
    return ""


def circumstances(seed: int | None, action: Any = None) -> str:
    """How to come to where an environment stood: for a debugger."""
    taken = f", action {np.asarray(action).tolist()}" if action is not None else ""
    return f"Its episode began with reset(seed={seed}){taken}."
