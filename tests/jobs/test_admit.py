"""How many jobs at once, as a function of what there is and what one takes."""

from __future__ import annotations

import pytest

from stoker.jobs.admit import Need, Room, admit

PLENTY = Room(cores=16, gpu_free_gib=80.0, host_free_gib=100.0)
SMALL = Need(gpu_gib=2.0, host_gib=2.0, gpu_share=0.1)


@pytest.mark.parametrize(
    ("room", "need", "at_once", "because"),
    [
        (PLENTY, SMALL, 8, "16 cores, 2 or more each: 8 at most"),
        (PLENTY, SMALL._replace(gpu_gib=20.0), 3, "80.0 GiB of GPU memory free, 20.0 taken"),
        (PLENTY, SMALL._replace(host_gib=30.0), 3, "100.0 GiB of memory free, 30.0 taken"),
        (PLENTY, SMALL._replace(gpu_share=0.25), 4, "one keeps 25% of the GPU at work: 4 fill it"),
        (PLENTY, SMALL._replace(gpu_share=0.97), 1, "one keeps 97% of the GPU at work: 1 fill it"),
        (PLENTY, SMALL._replace(gpu_share=0.8), 2, "2 fill it"),
        (PLENTY._replace(cores=3), SMALL, 1, "3 cores"),
        (PLENTY._replace(gpu_free_gib=1.0), SMALL, 1, "0 at most"),
    ],
)
def test_the_tightest_limit_decides_and_is_told_first(
    room: Room, need: Need, at_once: int, because: str
) -> None:
    admission = admit(20, 2, room, need)
    assert admission.at_once == at_once
    assert because in admission.reasons[0]


def test_no_more_than_there_are() -> None:
    assert admit(3, 1, PLENTY, SMALL).at_once == 3


def test_what_is_unknown_limits_nothing_and_is_said() -> None:
    admission = admit(20, 1, Room(cores=4), Need())
    assert admission.at_once == 4
    assert admission.reasons == (
        "4 cores, 1 or more each: 4 at most",
        "unknown: GPU memory, how much of the GPU is idle, memory of a job",
    )


def test_a_gpu_that_is_never_used_limits_nothing() -> None:
    assert admit(20, 2, PLENTY, SMALL._replace(gpu_share=0.0)).at_once == 8
