"""`python -m bench NAME [--case TEXT] [--env ENV] [--peer PEER] [--save]`, or `table`."""

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
    "parity",
    "peers",
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
_ELSEWHERE = {"peers": "comparison"}
"""By another name, as `bench.peers` holds the peers themselves."""


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=(*BENCHES, "table"))
    parser.add_argument("--case", default="", help="only those whose names have this in them")
    parser.add_argument("--save", action="store_true", help="keep the rows in bench/results")
    parser.add_argument("--env", help="another environment than its own, where it can take one")
    parser.add_argument("--peer", help="only those whose names have this in them")
    return parser


def main() -> None:
    line = parser()
    given = line.parse_args()
    if given.name == "table":
        import_module("bench.table").write()
        return
    try:
        cases = _cases(given)
    except ValueError as error:
        line.error(str(error))
    if not any(given.case in case for case in cases):
        line.error(f"no case of {given.name} has {given.case!r} in it: {', '.join(cases)}")
    publish(given.name, cases, given.case, given.save)


def _cases(given: argparse.Namespace) -> Cases:
    """Of the benchmark that is asked for."""
    bench = import_module(f"bench.{_ELSEWHERE.get(given.name, given.name)}")
    cases: Cases = bench.CASES
    if given.env:
        if not hasattr(bench, "cases_for"):
            raise ValueError(f"{given.name} measures environments of its own; leave --env out.")
        cases = bench.cases_for(given.env)
    if given.peer:
        if not hasattr(bench, "cases_with"):
            raise ValueError(f"{given.name} does not choose between peers; leave --peer out.")
        cases = bench.cases_with(given.peer)
    return cases


if __name__ == "__main__":
    main()
