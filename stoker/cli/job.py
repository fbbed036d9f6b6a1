"""`python -m stoker.cli.job CORES WORDS`: `stoker WORDS`, as a packer starts it."""

from __future__ import annotations

import sys

from stoker.jobs.child import keep_to, leave_with_packer


def main() -> None:
    """Before anything heavy is imported: threads are counted by the cores there are."""
    leave_with_packer()
    keep_to(sys.argv[1])
    from stoker.cli.main import run

    run(sys.argv[2:])


if __name__ == "__main__":
    main()
