"""The verdict: shares that add up, ceilings and predictions by closed forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.monitor.verdict import Job, costs_of, job_of, judge, shares_of

IN_STEP = Job(
    wall_s=10.0,
    steps=1000,
    phases={"env": 5.0, "inference": 2.0, "store": 0.5, "update": 2.0, "log": 0.1, "save": 0.1},
    collecting=None,
    worked_s=8.0,
    pool="process",
    workers=2,
    n_envs=8,
    cores=4,
    on_gpu=False,
)
OVERLAPPED = IN_STEP._replace(
    phases={"wait": 6.0, "update": 3.5, "log": 0.3},
    collecting={"env": 6.0, "inference": 3.0, "store": 0.6},
    worked_s=9.0,
)


def test_waiting_is_for_environments_as_far_as_workers_worked() -> None:
    shares = shares_of(IN_STEP)
    assert shares == pytest.approx(
        {
            "environments": 0.4,  # 8 s of two workers
            "hand-over": 0.1,
            "inference": 0.2,
            "storing": 0.05,
            "learning": 0.2,
            "logging": 0.02,
            "other": 0.03,
        }
    )


def test_what_the_learner_waits_for_is_what_collecting_does() -> None:
    shares = shares_of(OVERLAPPED)
    assert shares["environments"] == pytest.approx(0.6 * 4.5 / 9.6)
    assert shares["hand-over"] == pytest.approx(0.6 * 1.5 / 9.6)
    assert shares["learning"] == pytest.approx(0.35)
    assert sum(shares.values()) == pytest.approx(1.0)


seconds = st.floats(0.0, 100.0)


@given(
    st.dictionaries(
        st.sampled_from(["env", "inference", "store", "update", "wait", "log"]), seconds
    ),
    st.none() | st.dictionaries(st.sampled_from(["env", "inference", "store"]), seconds),
    st.none() | seconds,
    st.integers(0, 16),
    seconds,
)
def test_shares_always_sum_to_one(
    phases: dict[str, float],
    collecting: dict[str, float] | None,
    worked: float | None,
    workers: int,
    idle: float,
) -> None:
    if collecting is not None:
        phases = {
            name: took for name, took in phases.items() if name not in ("env", "inference", "store")
        }
        if not sum(collecting.values()):
            phases.pop("wait", None)
    else:
        phases.pop("wait", None)
    wall = sum(phases.values()) + idle + 0.01
    job = IN_STEP._replace(
        wall_s=wall, phases=phases, collecting=collecting, worked_s=worked, workers=workers
    )
    shares = shares_of(job)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)
    assert min(shares.values()) >= 0


def test_ceilings_are_what_each_part_alone_would_make() -> None:
    verdict = judge(IN_STEP)
    assert verdict.sps == pytest.approx(100)
    assert verdict.ceilings == pytest.approx(
        {"environments": 250, "inference": 500, "learning": 500}
    )
    assert verdict.limit == "environments"
    assert "there would be 250 steps a second; there are 100, 40% of that" in verdict.paragraph


def test_predictions_follow_from_the_costs() -> None:
    costs = costs_of(IN_STEP)
    assert costs.collecting == pytest.approx(7.5e-3)
    assert costs.total == pytest.approx(10e-3)
    advice = {each.change.split(" (")[0]: each for each in judge(IN_STEP).advice}
    assert advice["collect while learning"].sps == pytest.approx(100 * 10 / 8)
    assert advice["use every core"].sps == pytest.approx(100 * 10 / 8)  # 4 s of environments are 2
    assert advice["step twice as many at once"].sps == pytest.approx(100 * 10 / 8.5)
    assert (
        "To use every core (4 workers, --n-workers 4) should give 125" in judge(IN_STEP).paragraph
    )


def test_nothing_is_advised_that_brings_little() -> None:
    learning = OVERLAPPED._replace(
        wall_s=10.2, phases={"wait": 0.1, "update": 10.0}, collecting={"env": 4.0}, cores=2
    )
    verdict = judge(learning)
    assert verdict.limit == "learning"
    assert verdict.advice == []
    assert (
        "No setting that leaves learning as it is would change that by much." in verdict.paragraph
    )


def test_where_environments_wait_more_in_flight_is_not_said_to_bring_nothing() -> None:
    waiting = OVERLAPPED._replace(
        wall_s=10.2, phases={"wait": 10.0, "update": 0.1}, collecting={"env": 10.0}, pool="io"
    )
    said = judge(waiting).paragraph
    assert "more in flight (--in-flight) give more steps for as long as workers have cores" in said
    assert "No setting" not in said


@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_only_keeps_a_gpu_busy_is_called_no_speed(on_gpu: bool) -> None:
    said = judge(IN_STEP._replace(on_gpu=on_gpu)).paragraph
    assert ("More epochs or a wider network" in said) == on_gpu


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"pool": "tensor", "workers": 0, "worked_s": None}, "--n-envs"),
        ({"workers": 4}, "use every core"),
        ({"collecting": {"env": 5.0}}, "collect while learning"),
        ({"n_envs": 2}, "use every core"),
    ],
)
def test_only_what_can_be_changed_is_advised(change: dict[str, Any], missing: str) -> None:
    assert all(missing not in each.change for each in judge(IN_STEP._replace(**change)).advice)


def test_environments_in_the_trainer_are_spread_over_cores() -> None:
    inline = IN_STEP._replace(pool="inline", workers=0, worked_s=None)
    assert shares_of(inline)["hand-over"] == 0
    spread = next(each for each in judge(inline).advice if "processes" in each.change)
    assert spread.sps == pytest.approx(100 * 10 / (10 - 5 + 5 / 4))


@pytest.mark.parametrize(
    "job",
    [
        IN_STEP,
        OVERLAPPED,
        OVERLAPPED._replace(phases={"wait": 0.5, "update": 9.2}),
        IN_STEP._replace(pool="tensor", workers=0, phases={"env": 4.0, "update": 5.0}),
    ],
)
def test_a_job_made_of_costs_has_those_costs_again(job: Job) -> None:
    costs = costs_of(job)
    made = job_of(costs, 50_000, job)
    assert costs_of(made) == pytest.approx(costs, abs=1e-12)
    assert made.steps / made.wall_s == pytest.approx(1 / costs.total)
    assert sum(shares_of(made).values()) == pytest.approx(1.0)


def test_on_the_device_deciding_and_stepping_are_one() -> None:
    device = IN_STEP._replace(pool="tensor", workers=0, phases={"env": 6.0, "update": 3.0})
    verdict = judge(device)
    assert verdict.shares == pytest.approx(
        {"rollout": 0.6, "learning": 0.3, "logging": 0.0, "other": 0.1}
    )
    assert verdict.limit == "rollout"
    assert "deciding and stepping on the device, 60%" in verdict.paragraph


def test_deciding_for_twice_as_many_costs_what_it_did_when_it_was_tried() -> None:
    tried = IN_STEP._replace(inference_at={8: 1e-3, 16: 1.5e-3})  # 0.75 of it a step
    wider = next(each for each in judge(tried).advice if "--n-envs 16" in each.change)
    assert wider.sps == pytest.approx(100 * 10 / (10 - 2 + 2 * 0.75 - 0.5))


def test_what_was_tried_and_found_no_quicker_is_not_advised() -> None:
    tried = judge(IN_STEP._replace(overlap_tried=True))
    assert all("overlap" not in each.change for each in tried.advice)
