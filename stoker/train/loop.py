"""The loop: collect, learn, log, look, save."""

from __future__ import annotations

from collections.abc import Callable

from stoker.train.progress import Progress
from stoker.train.session import Session
from stoker.train.signals import StopRequest

Watch = Callable[[Progress], bool | None]
"""Told of every logged iteration; returning False stops the run, as in Stable-Baselines3."""


def run(session: Session, watch: Watch, stop: StopRequest) -> str:
    """Train until the steps are done or somebody asks to stop; how it ended."""
    parts, clock = session.parts, session.parts.clock
    wanted = True
    while session.unfinished and wanted and not stop.requested:
        session.mark()
        parts.learner.anneal(session.remaining)
        storage = parts.collector.collect(last=session.on_last_iteration)
        with clock.phase("update"):
            report = parts.lesson(storage)
            parts.collector.publish()
        session.advance(report)
        if session.log_due or stop.requested:
            wanted = watch(session.log(report)) is not False
        if session.eval_due:
            with clock.phase("eval"):
                session.evaluate(stop)
        if session.save_due:
            with clock.phase("save"):
                session.save()
    return "stopped" if session.unfinished else "finished"
