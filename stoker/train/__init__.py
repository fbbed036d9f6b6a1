"""Training: the only room that constructs, the loop, and evaluation.

The room is called as a function, too: `stoker.train(config)` trains a run.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.train.start import Outcome


class _Room(types.ModuleType):
    """A module that can be called, because `stoker.train` names both the room and its purpose."""

    def __call__(self, config: Any, env: Any = None, audience: Any = None) -> Outcome:
        """See `stoker.train.start.train`."""
        from stoker.train.start import train

        return train(config, env, audience)


sys.modules[__name__].__class__ = _Room
