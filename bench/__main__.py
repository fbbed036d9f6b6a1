"""`python -m bench NAME [--case TEXT] [--env ENV] [--save]`."""

from __future__ import annotations

import argparse
from importlib import import_module

from bench.record import Cases, publish

BENCHES = (
    "chain",
    "crawl",
    "curves",
    "dqn",
    "handover",
    "io",
    "lag",
    "learning",
    "monitor",
    "overlap",
    "pack",
    "pools",
    "population",
    "predict",
    "replay",
    "startup",
    "sweep",
    "tensor",
    "tune",
)
"""Modules beside this one. Only that which is asked for is imported: some need packages of their
own."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("--case", default="", help="only those whose names have this in them")
    parser.add_argument("--save", action="store_true", help="keep the rows in bench/results")
    parser.add_argument("--env", help="another environment than its own, where it can take one")
    given = parser.parse_args()
    bench = import_module(f"bench.{given.name}")
    if given.env and not hasattr(bench, "cases_for"):
        parser.error(f"{given.name} measures environments of its own; leave --env out.")
    cases: Cases = bench.cases_for(given.env) if given.env else bench.CASES
    if not any(given.case in case for case in cases):
        parser.error(f"no case of {given.name} has {given.case!r} in it: {', '.join(cases)}")
    publish(given.name, cases, given.case, given.save)


if __name__ == "__main__":
    main()
