"""Standard output that a program reads: one answer, and nothing that an environment says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def clean_output(as_json: bool) -> Iterator[TextIO | None]:
    """Where to write JSON, if asked for; what environments print goes to standard error then."""
    if not as_json:
        yield None
        return
    sys.stdout.flush()
    with open(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            yield answer
        finally:
            sys.stdout.flush()
            os.dup2(answer.fileno(), 1)
