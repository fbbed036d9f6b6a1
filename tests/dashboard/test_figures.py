"""A run in figures, by arithmetic that can be done by hand; what is not known is None."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_runs import VERDICT, make_run, stretches

from stoker.dashboard.figures import figures_of, shares
from stoker.runs.folder import METRICS_NAME, STATUS_NAME, TIMELINE_NAME
from stoker.runs.reader import read_run
from stoker.types import Stretch


def test_every_figure_of_a_run_on_a_gpu(tmp_path: Path) -> None:
    found = figures_of(read_run(make_run(tmp_path)))
    assert (found.name, found.env, found.state) == ("run", "CartPole-v1", "finished")
    assert (found.gpu, found.cores, found.steps, found.wall_s) == ("H200", 16, 20_000, 100.0)
    assert (found.sps, found.reward, found.eval_reward) == (200.0, 475.5, 500.0)
    assert (found.gpu_busy, found.sm_active) == pytest.approx((0.5, 0.25))
    assert (found.gpu_memory_gib, found.gpu_power_w) == pytest.approx((20.0, 300.0))
    # 300 W for 100 s are 30 kJ, and 20,000 steps are a fiftieth of a million.
    assert found.gpu_kj_per_million_steps == pytest.approx(1500.0)
    assert found.cpu == pytest.approx(0.8)
    assert found.phases["learner"] == pytest.approx({"wait": 0.4, "update": 0.6, "other": 0.0})
    assert found.phases["collector"] == pytest.approx({"env": 0.5, "other": 0.5})
    assert found.verdict == VERDICT
    assert found.missing == []


def test_steps_and_energy_of_a_population_are_of_all_agents(tmp_path: Path) -> None:
    run = make_run(tmp_path, config={"population": 4}, **{"population/best": 499.0})
    found = figures_of(read_run(run))
    assert (found.agents, found.steps, found.best_agent_reward) == (4, 80_000, 499.0)
    assert found.gpu_kj_per_million_steps == pytest.approx(375.0)


def test_a_run_without_a_gpu_has_unknown_figures_of_one(tmp_path: Path) -> None:
    found = figures_of(read_run(make_run(tmp_path, timeline=stretches(gpu=False), gpu=None)))
    assert found.gpu is None
    for name in ("gpu_busy", "sm_active", "gpu_memory_gib", "gpu_power_w"):
        assert getattr(found, name) is None, name
    assert found.gpu_kj_per_million_steps is None
    assert found.cpu == pytest.approx(0.8)


def test_a_figure_that_was_lost_on_the_way_is_unknown(tmp_path: Path) -> None:
    half = [each if each.at < 50 else each._replace(gpu={}) for each in stretches()]
    found = figures_of(read_run(make_run(tmp_path, timeline=half)))
    assert found.gpu_power_w is None
    assert found.gpu_kj_per_million_steps is None


def test_an_old_run_has_what_it_logged_of_its_gpu_and_says_that_it_has_no_timeline(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, verdict=None)
    (run / TIMELINE_NAME).unlink()
    lines = [{"env_steps": 1, "wall_s": 1.0, "time/fps": 1.0, "gpu/busy": 0.9, "gpu/power_w": 100}]
    lines += [{"env_steps": 2, "wall_s": 4.0, "time/fps": 1.0, "gpu/busy": 0.1}]
    lines += [{"env_steps": 2, "wall_s": 4.5, "eval/mean_reward": 1.0}]
    (run / METRICS_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = figures_of(read_run(run))
    assert found.gpu_busy == pytest.approx((0.9 + 3 * 0.1) / 4)
    assert found.gpu_power_w is None  # known for a quarter of the time
    assert found.phases == {}
    assert any("no timeline" in line for line in found.missing)
    assert any("no verdict" in line for line in found.missing)


def test_a_run_with_every_file_damaged_is_unknown_and_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("config.yaml", STATUS_NAME, METRICS_NAME, TIMELINE_NAME):
        (run / name).write_bytes(b'{"\xff')
    found = figures_of(read_run(run))
    assert found.state == "unknown"
    assert found.missing[0].startswith("status.json is missing or damaged")
    known = {name: value for name, value in found._asdict().items() if value is not None}
    assert known == {
        "name": "run",
        "state": "unknown",
        "agents": 1,
        "phases": {},
        "missing": found.missing,
    }


def test_a_run_that_has_just_begun_is_no_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, timeline=[], env_steps=0, sps=None, wall_s=0.0, verdict=None)
    found = figures_of(read_run(run))
    assert (found.steps, found.sps, found.gpu_kj_per_million_steps) == (0, None, None)


def test_shares_sum_to_one_whatever_the_clocks_say() -> None:
    late = Stretch(0.0, 1.0, {"learner": {"env": 0.7, "update": 0.4}}, {}, {})
    (spent,) = shares([late]).values()
    assert sum(spent.values()) == pytest.approx(1.0)
