"""Many agents at once: who is the best, what is kept of each, and how a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensor_envs import Ladder

from stoker import PPO
from stoker.config import resolve
from stoker.config.vary import drawn_settings
from stoker.errors import ConfigError
from stoker.runs import checkpoint
from stoker.runs.folder import RunFolder
from stoker.train import population, start
from stoker.train.inspect import evaluate_run
from stoker.train.parts import room_of

SIZES: dict[str, Any] = {"n_envs": 8, "n_steps": 16, "batch_size": 32, "n_epochs": 2}
SIZES |= {"network_arch": (32, 32), "device": "cpu"}
VARY = {"learning_rate": "1e-6..3e-2", "ent_coef": [0, 0.01]}
CROWD = {**SIZES, "population": 4, "vary": VARY, "seed": 5}


def run_of(tmp_path: Path, **settings: Any) -> start.Outcome:
    given = {"env": "tensor_envs:Ladder", "runs_dir": str(tmp_path), "run_name": "crowd", **CROWD}
    return start.train(resolve({**given, "timesteps": 10 * 128, **settings}, on_gpu=False))


def kept(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "crowd" / "population.json").read_text())


def test_agents_are_ranked_by_reward_and_the_unknown_come_last() -> None:
    config = resolve({"population": 4, "seed": 7, "vary": VARY})
    means = torch.tensor([[1.0, torch.nan, 3.0, 2.0], [10.0, torch.nan, 30.0, 20.0]])
    standings = population.ranked(config, means)
    assert [one.agent for one in standings] == [2, 3, 0, 1]
    assert [one.seed for one in standings] == [9, 10, 7, 8]
    assert [one.reward for one in standings] == [3.0, 2.0, 1.0, None]
    assert [one.length for one in standings] == [30.0, 20.0, 10.0, None]
    drawn = drawn_settings(VARY, seed=7, agents=4)
    assert [one.settings for one in standings] == [drawn[agent] for agent in (2, 3, 0, 1)]
    assert population.spread(standings) == (3.0, 2.0, 1.0)
    assert population.spread(standings[3:]) == (None, None, None)


def test_what_each_agent_came_to_is_kept_best_first(tmp_path: Path) -> None:
    outcome = run_of(tmp_path)
    found = kept(tmp_path)
    assert found["env_steps"] == 1280
    assert found["agents"] == [one._asdict() for one in outcome.standings]
    rewards = [one["reward"] for one in found["agents"]]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[0] > rewards[-1]
    assert found["reward"]["best"] == rewards[0] == outcome.metrics["population/best"]
    assert found["reward"]["worst"] == rewards[-1] == outcome.metrics["population/worst"]
    assert found["reward"]["median"] == pytest.approx(sum(rewards[1:3]) / 2)
    assert outcome.metrics["population/median"] == pytest.approx(found["reward"]["median"])
    drawn = drawn_settings(VARY, seed=5, agents=4)
    for one in found["agents"]:
        assert one["seed"] == 5 + one["agent"]
        assert one["settings"] == drawn[one["agent"]]


def test_a_file_that_cannot_be_written_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RunFolder, standings: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_population", fail)
    assert run_of(tmp_path, eval_episodes=0).state == "finished"
    status = json.loads((tmp_path / "crowd" / "status.json").read_text())
    assert "population.json could not be written" in status["trouble"]


def test_one_agent_alone_keeps_no_such_file(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, population=1, vary={})
    assert outcome.standings == []
    assert not (tmp_path / "crowd" / "population.json").exists()


def test_the_best_is_evaluated_at_the_end_and_later_by_default(tmp_path: Path) -> None:
    """Nothing in this environment is random, so an agent's evaluation is known by its return."""
    outcome = run_of(tmp_path)
    best = outcome.standings[0].agent
    assert outcome.evaluation is not None
    by_agent = [
        evaluate_run(tmp_path / "crowd", episodes=2, agent=agent, device="cpu").report.returns
        for agent in range(4)
    ]
    assert len({tuple(returns) for returns in by_agent}) > 1, "else this shows nothing"
    assert set(outcome.evaluation.returns) == set(by_agent[best])
    by_default = evaluate_run(tmp_path / "crowd", episodes=2, device="cpu")
    assert by_default.agent == best
    assert by_default.report.returns == by_agent[best]


@pytest.mark.parametrize("agent", [4, -1])
def test_an_agent_that_there_is_not(tmp_path: Path, agent: int) -> None:
    run_of(tmp_path, timesteps=128)
    with pytest.raises(ConfigError, match=f"agent is {agent}, and .* 4 agents, 0 to 3"):
        evaluate_run(tmp_path / "crowd", episodes=1, agent=agent, device="cpu")


def test_of_one_agent_alone_only_number_0_is_there(tmp_path: Path) -> None:
    run_of(tmp_path, timesteps=128, population=1, vary={})
    found = [
        evaluate_run(tmp_path / "crowd", episodes=1, agent=agent, device="cpu")
        for agent in (None, 0)
    ]
    assert [one.agent for one in found] == [None, 0]
    assert found[0].report == found[1].report
    with pytest.raises(ConfigError, match=r"agent is 1, and .* one agent, which is 0"):
        evaluate_run(tmp_path / "crowd", episodes=1, agent=1, device="cpu")


def test_a_resumed_population_keeps_its_settings_and_tells_of_itself_anew(tmp_path: Path) -> None:
    run_of(tmp_path, lr_schedule="constant", eval_episodes=0)
    before = kept(tmp_path)
    outcome = start.resume(tmp_path / "crowd", timesteps=20 * 128)
    after = kept(tmp_path)
    assert (before["env_steps"], after["env_steps"]) == (1280, 2560)
    settings = [
        {one["agent"]: one["settings"] for one in table["agents"]} for table in (before, after)
    ]
    assert settings[0] == settings[1]
    assert outcome.config.run.vary == {"learning_rate": "1e-06..0.03", "ent_coef": [0.0, 0.01]}


def test_the_required_reward_and_the_best_checkpoint_are_the_best_agents(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, eval_episodes=0)
    assert outcome.reward == outcome.standings[0].reward
    assert outcome.reward != outcome.metrics["rollout/ep_rew_mean"]
    _, saved = checkpoint.load_newest(tmp_path / "crowd" / "checkpoints")
    assert saved.state["counters"]["best_reward"] >= outcome.reward
    assert saved.state["best_agent"] == outcome.standings[0].agent


def test_in_python_the_policy_is_that_of_the_best_agent_by_now(tmp_path: Path) -> None:
    with PPO("MlpPolicy", Ladder, **CROWD) as model:
        model.learn(10 * 128)
        assert model.outcome is not None
        best = model.outcome.standings[0].agent
        model.save(tmp_path / "saved")
        crowd = room_of(checkpoint.load(tmp_path / "saved").tensors, "crowd")
        expected = {name: rows[best] for name, rows in crowd.items()}
        assert_same(model.policy, expected)
    assert_same(model.policy, expected)
    assert_same(PPO.load(tmp_path / "saved", device="cpu").policy, expected)
    other = (best + 1) % 4
    loaded = PPO.load(tmp_path / "saved", device="cpu", agent=other)
    assert_same(loaded.policy, {name: rows[other] for name, rows in crowd.items()})
    assert not torch.equal(loaded.policy.decide.weight, expected["decide.weight"])


def assert_same(policy: torch.nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, value in policy.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_loaded_population_trains_on_from_where_it_was(tmp_path: Path) -> None:
    """Its environments, too: else nothing would be known of the episodes before."""
    given = {**CROWD, "lr_schedule": "constant", "eval_episodes": 0}
    with PPO("MlpPolicy", Ladder, **given) as model:
        model.learn(5 * 128)
        model.save(tmp_path / "saved")
        with PPO.load(tmp_path / "saved", env=Ladder, device="cpu") as loaded:
            assert_same(loaded.policy, dict(model.policy.state_dict()))
            for one in (model, loaded):
                one.learn(5 * 128, reset_num_timesteps=False)
            assert loaded.outcome is not None
            assert model.outcome is not None
            assert loaded.outcome.standings == model.outcome.standings
    with pytest.raises(ConfigError, match="agent is 2, and env is given"):
        PPO.load(tmp_path / "saved", env=Ladder, device="cpu", agent=2)


def test_who_trains_is_told(tmp_path: Path) -> None:
    with PPO("MlpPolicy", Ladder, **CROWD) as model:
        told = {decision.what: decision for decision in model._training_parts().decisions}
    assert told["population"].chosen == "4 agents"
    assert told["population"].why == (
        "seeds 5 to 8; learning_rate from 1e-06..0.03, ent_coef from 0, 0.01"
    )
