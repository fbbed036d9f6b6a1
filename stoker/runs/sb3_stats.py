"""The statistics of a `VecNormalize`, from a file of plain arrays.

Stable-Baselines3 keeps them as a pickle, which can hold anything, so it is not read here: whoever
trusts theirs writes the arrays down with `RECIPE`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stoker.errors import ModelFileError

RECIPE = """\
import pathlib, pickle, numpy as np

v = pickle.loads(pathlib.Path("vecnormalize.pkl").read_bytes())
names = ("norm_obs", "norm_reward", "clip_obs", "clip_reward", "epsilon")
kept = {name: getattr(v, name) for name in names}
kept |= {"mean": v.obs_rms.mean, "var": v.obs_rms.var, "count": v.obs_rms.count}
kept |= {"ret_var": v.ret_rms.var, "ret_count": v.ret_rms.count}
np.savez("stats.npz", **kept)"""
_SIZE_LIMIT = 64 << 20
_CLIP, _EPSILON = 10.0, 1e-8
_NAMES = ("mean", "var", "count", "ret_var", "ret_count", "norm_obs", "norm_reward")


class ForeignStats(NamedTuple):
    """What observations and rewards were scaled by; None where they were not."""

    obs: tuple[np.ndarray, np.ndarray, float] | None
    """Mean and variance, float64 [width] each, and how many rows they are of."""
    returns: tuple[float, float] | None
    """The variance of the discounted return, and how many it is of."""


def read_stats(path: Path) -> ForeignStats:
    """The statistics at `path`; ModelFileError unless they are numbers that can be used."""
    arrays = _arrays(path)
    missing = [name for name in _NAMES if name not in arrays]
    if missing:
        raise _refused(path, f"it has no {', '.join(missing)}")
    obs = returns = None
    if bool(arrays["norm_obs"]):
        _expect(path, arrays, "clip_obs", _CLIP)
        mean, var = arrays["mean"].ravel(), arrays["var"].ravel()
        obs = (mean, var, float(arrays["count"]))
    if bool(arrays["norm_reward"]):
        _expect(path, arrays, "clip_reward", _CLIP)
        returns = (float(arrays["ret_var"]), float(arrays["ret_count"]))
    if obs or returns:
        _expect(path, arrays, "epsilon", _EPSILON)
    return ForeignStats(obs, returns)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array as float64. Nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _SIZE_LIMIT:
                raise _refused(path, f"it would take more than {_SIZE_LIMIT:,} bytes")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: np.asarray(stored[name], np.float64) for name in stored.files}
    except (zipfile.BadZipFile, ValueError, TypeError, EOFError, MemoryError) as error:
        raise _refused(path, f"it is no archive of plain arrays ({error})") from error
    except OSError as error:
        raise ModelFileError(f"Cannot read {path}: {error.strerror or error}.") from error
    for name, array in arrays.items():
        least = 0.0 if "var" in name or "count" in name else -np.inf
        if not np.isfinite(array).all() or (array < least).any():
            raise _refused(path, f"{name} is not finite, or is below 0")
        if array.size != 1 and name not in ("mean", "var"):
            raise _refused(path, f"{name} is {array.size} numbers, and one was expected")
    return arrays


def _expect(path: Path, arrays: dict[str, np.ndarray], name: str, value: float) -> None:
    found = float(arrays[name]) if name in arrays else value
    if found != value:
        raise ModelFileError(
            f"{path}: {name} is {found:g}, and Stoker's own is {value:g}, which cannot be changed: "
            "the model would see something else than it was trained on. Normalise in a wrapper of "
            "the environment instead, and import without --normalize."
        )


def _refused(path: Path, found: str) -> ModelFileError:
    return ModelFileError(
        f"{path} cannot be used: {found}. Expected is a file of arrays. Nothing is unpickled here; "
        f"write it with Python, from a vecnormalize.pkl that you trust:\n{RECIPE}"
    )
