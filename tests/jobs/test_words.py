"""Jobs as they are typed or listed in a file: names, seeds, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.jobs.advice import population_instead
from stoker.jobs.attempt import first_words, resuming_words
from stoker.jobs.job_file import read_jobs, refuse_twins
from stoker.jobs.words import Job, copies, make_job, settings_of, with_flags

SMALL = "train --env tensor/CartPole-v1 --network-arch 64,64"


def copied(words: str, count: int = 3) -> list[Job]:
    return copies(words.split(), count, "pack-1", "runs")


def test_copies_have_seeds_and_names_of_their_own() -> None:
    jobs = copied("train --seed=7 --env CartPole-v1 --run-name mine")
    assert [job.name for job in jobs] == ["mine-s7", "mine-s8", "mine-s9"]
    for number, job in enumerate(jobs):
        assert settings_of(job.words)["seed"] == str(7 + number)
        assert job.words.count("--run-name") == 1
        assert "--seed=7" not in job.words
        assert job.path == Path("runs") / job.name


def test_settings_come_from_words_over_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("preset: heavy\nn-envs: 4\nseed: 5\nrun_name: filed\nruns_dir: elsewhere\n")
    words = ["train", "--config", str(file), "--num-envs", "2"]
    settings = settings_of(words)
    assert settings["n_envs"] == "2"
    assert settings["n_steps"] == 256
    assert settings["network_arch"] == (1024, 512, 256)
    assert [job.path for job in copies(words, 2, "pack-1", "runs")] == [
        Path("elsewhere/filed-s5"),
        Path("elsewhere/filed-s6"),
    ]


def test_a_preset_that_is_looked_up_later_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("run_name: mine\nseed: 7\nruns_dir: elsewhere\n")
    words = ["train", "--config", str(file), "--preset", "auto"]
    assert [str(job.path) for job in copies(words, 2, "pack-1", "runs")] == [
        "elsewhere/mine-s7",
        "elsewhere/mine-s8",
    ]


def test_what_a_job_cannot_know_of_is_left_to_the_run() -> None:
    assert settings_of(["train", "--preset", "nonsense", "--nonsense", "3"]) == {}
    assert settings_of(["train", "--config", "nowhere.yaml", "--lr", "1"])["learning_rate"] == "1"


def test_a_flag_takes_the_place_of_every_way_to_write_it() -> None:
    words = ["train", "--total-timesteps", "5", "--monitor", "--timesteps=7"]
    assert with_flags(words, {"timesteps": "9"}) == ("train", "--monitor", "--timesteps", "9")


def test_workers_are_one_a_core_unless_asked_for() -> None:
    assert first_words(copied("train")[0], (4, 5))[-2:] == ("--n-workers", "2")
    asked = copied("train --n-workers 7")[0]
    assert first_words(asked, (4, 5)) == asked.words


def test_what_was_killed_is_resumed_by_its_path() -> None:
    assert resuming_words(copied("train")[0]) == ("resume", "runs/pack-1-s0")
    resumed = make_job(["resume", "mine", "--timesteps", "2M"], "unused", "runs")
    assert resumed.words == ("resume", "runs/mine", "--timesteps", "2M")
    assert resuming_words(resumed) == resumed.words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "begins with ''"),
        (["eval", "mine"], "begins with 'eval'"),
        (["resume"], "names no run"),
        (["resume", "mine"], "cannot be resumed 3 times"),
        (["train", "--seed", "many"], "seed: 'many' is not a whole number"),
    ],
)
def test_what_is_no_job_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        copies(words, 3, "pack-1", "runs")


def listed(tmp_path: Path, text: str) -> list[Job]:
    (tmp_path / "jobs.yaml").write_text(text)
    return read_jobs(tmp_path / "jobs.yaml", "pack-1", tmp_path / "pack-1", "runs")


def test_a_file_lists_words_and_settings(tmp_path: Path) -> None:
    words, settings = listed(
        tmp_path,
        "- [train, --env, CartPole-v1, --seed, 3, --run-name, one]\n"
        "- {env: Acrobot-v1, preset: heavy, env_kwargs: {render_mode: null}}\n",
    )
    assert words.name == "one"
    assert words.words[:5] == ("train", "--env", "CartPole-v1", "--seed", "3")
    assert settings.name == "pack-1-1"
    assert settings.words[:3] == ("train", "--config", str(tmp_path / "pack-1/pack-1-1.yaml"))
    assert settings.file == {
        "env": "Acrobot-v1",
        "preset": "heavy",
        "env_kwargs": {"render_mode": None},
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must hold a list"),
        ("[]", "must hold a list"),
        ("env: CartPole-v1", "must hold a list"),
        ("- 3", "entry 1: 3 is no job"),
        ("- [train, true]", "entry 1"),
        ("- [train]\n- [monitor]", "entry 2: A job begins with 'monitor'"),
        ("- !!python/object/apply:os.system ['true']", "loaded safely"),
        ("- &a [train]\n- *a", "aliases"),
        ("- [train", "loaded safely"),
        ("- {run_name: /tmp/elsewhere}", "entry 1: run_name '/tmp/elsewhere' cannot be a folder"),
        ("- {run_name: ../elsewhere}", "cannot be a folder's name"),
        ("- [train, --run-name, ../elsewhere]", "cannot be a folder's name"),
    ],
)
def test_a_bad_file_is_explained(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        listed(tmp_path, text)


def test_a_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the job file"):
        read_jobs(tmp_path / "none.yaml", "p", tmp_path, "runs")


def test_no_two_jobs_train_one_run(tmp_path: Path) -> None:
    jobs = listed(tmp_path, "- [train, --run-name, one]\n- {run_name: one, runs_dir: other}\n")
    with pytest.raises(ConfigError, match="Two jobs are called one"):
        refuse_twins(jobs)


def test_a_population_is_named_where_it_would_do() -> None:
    assert "--population 3" in (population_instead(copied(SMALL)) or "")


@pytest.mark.parametrize(
    "words",
    [
        "train --env CartPole-v1 --network-arch 64,64",
        "train --env tensor/CartPole-v1 --preset heavy",
        f"{SMALL} --device cpu",
        f"{SMALL} --population 2",
    ],
)
def test_a_population_is_not_named_where_it_would_not(words: str) -> None:
    assert population_instead(copied(words)) is None


def test_jobs_that_differ_in_more_than_seeds_are_no_population() -> None:
    one, two = (make_job(f"{SMALL} --lr {lr}".split(), lr, "runs") for lr in ("1e-3", "1e-4"))
    assert population_instead([one, two]) is None
