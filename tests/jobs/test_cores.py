"""Cores are split so that each is one job's, and every one is somebody's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stoker.jobs.cores import our_cores, split


@pytest.mark.parametrize("count", [1, 2, 7, 16])
@pytest.mark.parametrize("jobs", [1, 2, 3, 4, 7, 16])
def test_shares_are_disjoint_and_cover_all(count: int, jobs: int) -> None:
    cores = [10 + core for core in range(count)]
    if jobs > count:
        with pytest.raises(ValueError, match="cannot be split"):
            split(cores, jobs)
        return
    shares = split(cores, jobs)
    assert len(shares) == jobs
    assert [core for share in shares for core in share] == cores
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


def test_our_cores_are_those_of_the_process() -> None:
    assert sorted(our_cores()) == sorted(os.sched_getaffinity(0))


def test_a_child_and_what_it_starts_see_their_share_alone() -> None:
    core = our_cores()[-1]
    program = f"""if True:
        import os, subprocess, sys
        from stoker.jobs.child import keep_to
        from stoker.pools.choose import usable_cores
        keep_to("{core}")
        assert usable_cores() == 1
        look = "import os; print(*os.sched_getaffinity(0))"
        subprocess.run([sys.executable, "-c", look])
    """
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert seen.stdout.split() == [str(core)], seen.stderr
