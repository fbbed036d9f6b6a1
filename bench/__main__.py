"""`python -m bench NAME [--save]`."""

from __future__ import annotations

import argparse

from bench import handover, lag, learning, overlap, pools
from bench.record import publish

BENCHES = {
    "handover": handover.measure,
    "lag": lag.measure,
    "learning": learning.measure,
    "overlap": overlap.measure,
    "pools": pools.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=BENCHES)
    parser.add_argument("--save", action="store_true", help="keep the rows in bench/results")
    given = parser.parse_args()
    publish(given.name, BENCHES[given.name](), given.save)


if __name__ == "__main__":
    main()
