"""Every error Stoker raises on purpose: what was found, what was expected, what to do.

The command line prints these without a traceback and leaves with `exit_code`.
"""

from __future__ import annotations

from collections.abc import Sequence


class StokerError(Exception):
    """The root of all errors that Stoker raises on purpose."""

    exit_code = 1


class ConfigError(StokerError):
    """One or more settings cannot work; every failure found is listed."""

    exit_code = 2

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class SpaceError(ConfigError):
    """An observation or action space that Stoker cannot train on."""


class WrongPoolError(ConfigError):
    """The pool that was asked for is for the other kind of environment: tensors, or ordinary."""


class EnvError(StokerError):
    """An environment raised, or hung, or returned something its spaces do not allow."""


class MissingAttributeError(EnvError, AttributeError):
    """An environment has no attribute of that name."""


class EpisodeCutError(EnvError):
    """For environments to raise in `step`: what came of the action cannot be known.

    A request that timed out, say. The step is no transition and the episode is cut off; nothing is
    wrong with the environment, so it goes on with the next one, and no fault counts.
    """


class BadValueError(EnvError):
    """An environment returned something that its spaces or Gymnasium do not allow."""


class WorkerError(StokerError):
    """A worker process could not start, or died."""


class CheckpointError(StokerError):
    """A checkpoint is missing, damaged, or not one of ours. Nothing in it was run."""


class ModelFileError(StokerError):
    """A model of another library's cannot be taken over. Nothing in its file was run."""


class RunError(StokerError):
    """A run folder is missing, taken, or cannot be used as asked."""

    exit_code = 2


class NameTakenError(RunError):
    """There is a run of that name already."""


class TrainingError(StokerError):
    """Training cannot go on (the loss stays non-finite, for one)."""


class MemoryShortError(TrainingError):
    """The device's memory does not even suffice for the fewest rows at once."""


class CaptureAgainError(Exception):
    """Memory ran out amid the capture of a CUDA graph; what is captured takes less from now on."""


class GatheringInterruptedError(Exception):
    """Whoever wanted a rollout does not want it any more."""
