"""`python -m bench NAME [--case TEXT] [--save]`."""

from __future__ import annotations

import argparse

from bench import crawl, handover, io, lag, learning, overlap, pools, population, startup, tensor
from bench.record import Cases, publish

BENCHES: dict[str, Cases] = {
    "crawl": crawl.CASES,
    "handover": handover.CASES,
    "io": io.CASES,
    "lag": lag.CASES,
    "learning": learning.CASES,
    "overlap": overlap.CASES,
    "pools": pools.CASES,
    "population": population.CASES,
    "startup": startup.CASES,
    "tensor": tensor.CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("--case", default="", help="only those whose names have this in them")
    parser.add_argument("--save", action="store_true", help="keep the rows in bench/results")
    given = parser.parse_args()
    cases = BENCHES[given.name]
    if not any(given.case in case for case in cases):
        parser.error(f"no case of {given.name} has {given.case!r} in it: {', '.join(cases)}")
    publish(given.name, cases, given.case, given.save)


if __name__ == "__main__":
    main()
