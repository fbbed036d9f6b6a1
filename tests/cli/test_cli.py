"""The command line: what is typed right works; what is typed wrong is explained."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from stoker.cli.main import main
from stoker.cli.screen import LiveView
from stoker.cli.train import parse_train
from stoker.config import resolve
from stoker.errors import ConfigError
from stoker.train.progress import Progress

Run = Callable[..., subprocess.CompletedProcess[str]]


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `stoker WORDS`, in this process."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    code = left.value.code
    out, error = capsys.readouterr()
    return int(code or 0), out, error


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test in an empty folder, where a run folder left behind would show."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --batch-size 100", ["nearest that divide", "32, 64, 128, 256", "= 256"]),
        ("train --preset hevy", ["no preset 'hevy'", "heavy"]),
        ("train --preset nope", ["no preset 'nope'", "gpu-sim, auto"]),
        ("train --network-arch 64,,64", ["'64,,64'", "not a list"]),
        ("train --env math:pi", ["has no 'pi' that can be called", "id.\n"]),
        ("train --n-env 3", ["--n-env", "--n-envs"]),
        ("train --env CartPole-v9", ["CartPole-v9", "CartPole-v1"]),
        ("train --env no_such_module:Env", ["no module 'no_such_module'"]),
        ("train --env tasks:NoSuchTask", ["NoSuchTask"]),
        ("train --n-envs 0", ["n_envs is 0", "1 or more"]),
        ("train --timesteps many", ["many", "not a whole number"]),
        ("train --config nowhere.yaml", ["nowhere.yaml", "No such file"]),
        ("train --run-name ../escape", ["run_name"]),
        ("train --env-kwargs {gravity:9}", ["gravity:9"]),
        ("train --vary lr=1e-4..1e-2", ["population is 1", "--population"]),
        (
            "train --population 2 --vary lr=2..1 gama=0..1 --n-envs 0",
            ["2..1 is empty", "'gama' cannot differ", "vf_coef can", "n_envs is 0"],
        ),
        ("train --population 2 --vary lr=1..2", ["CartPole-v1 is no tensor environment"]),
        ("trian", ["no command 'trian'", "train"]),
        ("resume nothing", ["no run at", "nothing"]),
        ("eval nothing", ["no run at", "nothing"]),
    ],
)
def test_a_mistake_is_explained_with_exit_code_2_and_leaves_nothing_behind(
    words: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = called(capsys, *words.split(), *(["--device", "cpu"] * ("train " in words)))
    assert code == 2
    for part in says:
        assert part in out + error
    assert "Traceback" not in out + error
    assert not Path("runs").exists()


def test_three_mistakes_in_a_file_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("n_env: 4\nlearning_rate: quick\ngamma: 1.5\n")
    code, _, error = called(capsys, "train", "--config", "bad.yaml", "--device", "cpu")
    assert code == 2
    assert "no setting 'n_env'" in error
    assert "n_envs" in error
    assert "learning_rate" in error
    assert "gamma is 1.5" in error
    assert not Path("runs").exists()


def test_a_mistake_in_a_flag_and_one_in_a_file_are_reported_together() -> None:
    Path("bad.yaml").write_text("n_env: 4\n")
    with pytest.raises(ConfigError) as caught:
        parse_train(["--config", "bad.yaml", "--n-steps", "0", "--device", "cpu"])
    assert len(caught.value.problems) == 2


def test_flags_beat_the_file_which_beats_the_preset_which_beats_the_defaults() -> None:
    Path("some.yaml").write_text("n_steps: 128\nn_epochs: 3\ntimesteps: 2M\n")
    words = "--device cpu --preset heavy --config some.yaml --n-epochs 7 --batch-size auto"
    config, _ = parse_train(words.split())
    assert config.env.n_envs == 32  # the preset's
    assert config.ppo.n_steps == 128  # the file's
    assert config.run.timesteps == 2_000_000
    assert config.ppo.n_epochs == 7  # the flag's
    assert config.minibatch == 4096  # auto: 32 x 128 is the preset's minibatch
    assert config.ppo.gamma == 0.99  # the default


def test_a_flag_beats_a_preset_even_with_the_default_value() -> None:
    config, _ = parse_train(["--preset", "heavy", "--n-epochs", "4", "--device", "cpu"])
    assert config.ppo.n_epochs == 4


@pytest.mark.parametrize(
    "words",
    [
        "--env-id Acrobot-v1 --total-timesteps 50M --num-envs 4 --num-steps 64 --update-epochs 9",
        "--env Acrobot-v1 --timesteps 5e7 --n-envs 4 --n-steps 64 --repeat-times 9",
    ],
)
def test_both_dialects_mean_the_same(words: str) -> None:
    config, _ = parse_train([*words.split(), "--device", "cpu"])
    sizes = (config.env.n_envs, config.ppo.n_steps, config.ppo.n_epochs)
    assert (config.env.env, config.run.timesteps, *sizes) == ("Acrobot-v1", 50_000_000, 4, 64, 9)


def test_subproc_is_short_for_the_process_pool() -> None:
    config, _ = parse_train(["--subproc", "--network-arch", "1024,512,256", "--device", "cpu"])
    assert config.env.pool == "process"
    assert config.network.network_arch == (1024, 512, 256)


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "presets", "--json")
    assert code == 0
    assert json.loads(out)["heavy"]["network_arch"] == [1024, 512, 256]
    code, out, _ = called(capsys, "presets")
    assert "1024,512,512,256" in out


@pytest.mark.parametrize(
    "command", ["train", "resume", "eval", "runs", "presets", "check", "monitor"]
)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, command, "--help")
    assert code == 0
    assert f"stoker {command}" in out
    assert "Try:" in out


def test_a_whole_life(stoker: Run, tmp_path: Path) -> None:
    """Train, list, evaluate: each speaks JSON."""
    words = "train --env CartPole-v1 --timesteps 2k --device cpu --run-name life --json"
    trained = stoker(*words.split(), "--checkpoint-every", "512", "--eval-every", "512")
    assert trained.returncode == 0, trained.stderr
    outcome = json.loads(trained.stdout)
    assert outcome["env_steps"] == 2048
    assert sum(outcome["shares"].values()) == pytest.approx(1.0)
    assert sum(outcome["verdict"]["shares"].values()) == pytest.approx(1.0, abs=0.01)
    assert outcome["verdict"]["paragraph"].startswith("Most time goes to ")
    listed = json.loads(stoker("runs", "--json", "--sort", "reward").stdout)
    assert [(run["name"], run["state"], run["env_steps"]) for run in listed] == [
        ("life", "finished", 2048)
    ]
    for which in ("newest", "best"):
        words = f"eval life --episodes 3 --checkpoint {which} --json --device cpu"
        report = json.loads(stoker(*words.split()).stdout)
        assert report["episodes"] == 3
        assert report["mean_reward"] >= 8
    kept = sorted(path.name for path in (tmp_path / "runs/life/checkpoints").iterdir())
    assert "step-000000002048" in kept
    odd = stoker("eval", "life", "--seed", "-1")
    assert (odd.returncode, "seed is -1; it must be 0 or more" in odd.stderr) == (2, True)
    typo = stoker("eval", "life", "--checkpoint", "step-2048", "--device", "cpu")
    assert typo.returncode == 2
    assert "has no checkpoint 'step-2048'; it has step-" in typo.stderr
    one = stoker("eval", "life", "--episodes", "1", "--device", "cpu")
    assert "mean reward of 1 episode with" in one.stdout
    assert len(kept) in (3, 4)  # the newest three, and the best if it is older
    again = stoker("train", "--run-name", "life", "--device", "cpu")
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_population_names_its_best_agent(stoker: Run, tmp_path: Path) -> None:
    words = "train --env tensor/CartPole-v1 --n-envs 8 --n-steps 32 --batch-size 64 --device cpu"
    words += " --timesteps 2k --population 3 --vary lr=1e-5..1e-2 ent_coef=0,0.01"
    told = stoker(*words.split(), "--run-name", "told")
    assert told.returncode == 0, told.stderr
    trained = stoker(*words.split(), "--run-name", "crowd", "--json")
    outcome = json.loads(trained.stdout)["population"]
    kept = json.loads((tmp_path / "runs/crowd/population.json").read_text())
    assert outcome == {"agents": 3, "best": kept["agents"][0], "reward": kept["reward"]}
    best = outcome["best"]
    settings = f"learning_rate {best['settings']['learning_rate']:g}, ent_coef "
    assert f"number {best['agent']}, seed {best['seed']}, {settings}" in told.stdout
    assert f"best {best['reward']:.1f}, median " in told.stdout
    assert "20 evaluations of the best agent" in told.stdout
    other = kept["agents"][-1]["agent"]
    for words, agent in (("eval crowd", best["agent"]), (f"eval crowd --agent {other}", other)):
        found = stoker(*words.split(), "--episodes", "2", "--device", "cpu")
        assert f"actions of agent {agent} in step-000000002048" in found.stdout
    found = stoker("eval", "crowd", "--agent", "3", "--device", "cpu", "--json")
    assert found.returncode == 2
    assert "3 agents, 0 to 2" in found.stderr


def test_a_population_of_which_no_episode_ended_has_no_best_agent(stoker: Run) -> None:
    words = "train --env tensor/Pendulum-v1 --n-envs 8 --n-steps 16 --batch-size 64 --device cpu"
    told = stoker(*words.split(), "--timesteps", "128", "--population", "2", "--eval-episodes", "0")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("unknown: no episode ended") == 2


def test_the_time_left_is_that_of_all_agents() -> None:
    console = Console(file=io.StringIO(), width=120)
    view = LiveView(console)
    view.begins(resolve({"population": 4}), [], None)
    console.print(view._draw(Progress(1, 2, 1000, 2000, 1.0, sps=100.0, shares={}, metrics={})))
    view.leaves()
    assert "50%, 40 s left" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_best_checkpoint_is_the_one_that_was_evaluated_best(
    stoker: Run, tmp_path: Path
) -> None:
    words = "train --timesteps 4096 --eval-every 512 --checkpoint-every 4096 --eval-episodes 3"
    ended = stoker(*words.split(), "--lr", "0.02", "--device", "cpu", "--run-name", "wild")
    assert ended.returncode == 0, ended.stderr
    run = tmp_path / "runs/wild"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = {x["env_steps"]: x["eval/mean_reward"] for x in lines if "eval/mean_reward" in x}
    assert len(evaluated) == 8, "once each, the last step not twice"
    best = max(evaluated, key=lambda step: (evaluated[step], -step))
    words = "eval wild --checkpoint best --episodes 1 --json --device cpu"
    report = json.loads(stoker(*words.split()).stdout)
    assert report["checkpoint"] == f"step-{best:012d}"
    status = json.loads((run / "status.json").read_text())
    assert status["eval/mean_reward"] == evaluated[4096]


def test_a_warning_is_shown_without_the_colours_it_brings(stoker: Run) -> None:
    words = "train --env CartPole --timesteps 256 --eval-episodes 1 --device cpu"
    ended = stoker(*words.split())
    assert ended.returncode == 0, ended.stderr
    assert "warning: WARN: Using the latest versioned environment `CartPole-v1`" in ended.stderr
    assert "\x1b" not in ended.stderr
    assert "mean of 1 evaluation " in ended.stdout


def test_what_an_environment_prints_does_not_stand_in_the_json(stoker: Run) -> None:
    words = "train --env tasks:Talking --timesteps 256 --device cpu --json --pool"
    for pool in ("inline", "process"):
        ended = stoker(*words.split(), pool)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["env_steps"] == 256
        assert "hello from the environment" in ended.stderr
    words = "train --env tasks:Talking --timesteps 64 --device cpu --run-name talk --json"
    assert stoker(*words.split()).returncode == 0
    for words in ("eval talk --episodes 2 --device cpu --json", "check tasks:Talking --json"):
        looked = stoker(*words.split())
        assert looked.returncode == 0, looked.stderr
        assert isinstance(json.loads(looked.stdout), dict)
        assert "hello from the environment" in looked.stderr


def test_the_exit_code_tells_whether_the_required_reward_was_reached(stoker: Run) -> None:
    words = "train --env tasks:Count --timesteps 256 --device cpu --require-reward"
    assert stoker(*words.split(), "5").returncode == 0
    failed = stoker(*words.split(), "5.5")
    assert failed.returncode == 1
    assert "5.5 was required" in failed.stderr


def test_a_run_beside_where_one_stands_is_named_by_a_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name alone is looked for in `runs`; what is said to come next has to work."""
    monkeypatch.chdir(tmp_path)
    words = "--env CartPole-v1 --timesteps 256 --device cpu --n-steps 64 --pool inline --seed 1"
    here = "--runs-dir . --run-name here --eval-episodes 1"
    code, said, errors = called(capsys, "train", *words.split(), *here.split())
    assert code == 0, errors
    assert "stoker eval ./here" in said
    assert called(capsys, "eval", "./here", "--episodes", "1")[0] == 0
