"""Every command and all Python in the README and the docs, run or at least understood."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import pytest
import yaml
from made_runs import make_run
from pages import PAGES, ROOT, Block, blocks_of
from warm_start import WarmStart

from bench.__main__ import parser
from stoker.cli.main import main

NEEDS = {
    "cluster": "other machines",
    "envpool": "a package that tests do without",
    "gpu": "a GPU",
    "install": "packages from elsewhere",
    "jax": "a package that tests do without",
    "minutes": "more time than a test has",
    "server": "a server in another terminal",
}
"""Why a block may be understood instead of run. Packages are used where they are installed."""
DATA = {"json": json.loads, "yaml": yaml.safe_load, "text": str}
"""Languages in which nothing is run."""
STAND_INS = {"my_module:MyEnv": "examples.thermostat:Thermostat", "ENV": "CartPole-v1"}
"""What a reader has and a test has not."""
READERS_RUNS = ("my-run", "before", "after")
"""Runs that pages speak of without having made them."""
READERS_FILES = {"runs/first/best.yaml": "learning_rate: 1e-3\n"}
"""Files that commands write which are only understood here."""
MODEL, NORMALISED = "model.zip", ("vecnormalize.pkl", "Pendulum-v1")
"""What Stable-Baselines3 leaves, and on what it was trained where that is not in the same line."""
ON_CPU = {"--device": "cpu"}
SMALLER = {
    "train": {"--timesteps": "16", "--n-steps": "16", "--eval-episodes": "1", **ON_CPU},
    "eval": {"--episodes": "1", **ON_CPU},
    "check": ON_CPU,
    "monitor": {"--every": "0.2"},
}
"""Flags that a command gets when it is run, whether or not it has them."""
SMALLER_PPO = {"--batch-size": "auto", "--n-epochs": "1"}
FEWER = {"sweep": {"--jobs": "1"}}
"""Flags that must fit this machine when a command is understood."""
ADDED = {"monitor": ["--once"]}
SHORTER = (
    (re.compile(r"\.learn\([\d_]+"), ".learn(300"),
    (re.compile(r"\bseed=1\b"), "seed=1, eval_episodes=1"),
    (
        re.compile(r'make_sb3_vec\("CartPole-v1", 64\)'),
        'make_sb3_vec("CartPole-v1", 2), n_steps=64',
    ),
)
"""The same for Python."""
BEGIN = ("train", "resume")
"""Commands that are run at another size than is typed: what is typed is looked at, too."""
BEGINNINGS = (
    "stoker.train.start.train",
    "stoker.train.start.resume",
    "stoker.tune.doctor.diagnose",
    "stoker.tune.tuning.tune",
    "stoker.cli.pack._make",
    "stoker.cli.sweep._conduct",
    "stoker.cli.sweep._own_storage",
    "stoker.cli.site.ServerProcesses.__enter__",
)
"""Where commands, once they have understood what was typed, begin."""
NOT_OURS = {"python3 -m venv .venv", ". .venv/bin/activate", "curl http://127.0.0.1:8000/stats"} | {
    "curl http://127.0.0.1:8000/s/7/"
}

Told = Iterator[str]
Flags = dict[str, str]


class BeganError(Exception):
    """A command has understood its flags and would begin now."""


def test_every_block_is_of_a_kind_that_is_run_understood_or_data() -> None:
    wrong = []
    for block in (block for page in PAGES for block in blocks_of(page)):
        if block.language not in {"shell", "python", *DATA}:
            wrong.append(f"{block.place}: a block of {block.language or 'nothing'}")
        elif strange := [name for name in block.needs if name not in NEEDS]:
            wrong.append(f"{block.place}: nobody knows what {strange} is")
        elif block.language == "text" and re.search(r"(?m)^(\$ )?(stoker|python|pip) ", block.text):
            wrong.append(f"{block.place}: a command in a block of text")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)])
def test_what_a_page_says_to_type_works(
    page: str, warm_start: WarmStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    blocks = blocks_of(page)
    words = {word for block in blocks if block.language == "shell" for word in block.text.split()}
    for name in words & {*READERS_RUNS}:
        make_run(tmp_path / "runs", name)
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    wrong = []
    for block in blocks:
        for problem in _problems(block, warm_start, monkeypatch):
            wrong.append(f"{block.place}: {problem}")
    assert not wrong, "\n".join(wrong)


def _problems(block: Block, warm_start: WarmStart, patch: pytest.MonkeyPatch) -> Told:
    if block.language in DATA:
        DATA[block.language](block.text)
    elif block.language == "python" and _can_run(block):
        if NORMALISED[0] in block.text:
            _train_with_sb3(NORMALISED[1])
        yield from _run_python(block, warm_start)
    elif block.language == "python":
        yield from _resolve_imports(block)
    else:
        for words in block.commands():
            words = [STAND_INS.get(word, word) for word in words]
            for name in {*words} & {*READERS_FILES}:
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(READERS_FILES[name])
            if MODEL in words and "--normalize" not in words:
                _train_with_sb3(words[words.index("--env") + 1])
            if words[0] != "stoker":
                yield from _of_others(words, block)
                continue
            if words[1] in BEGIN or not _can_run(block):
                yield from _understand(words[1:], patch)
            if _can_run(block):
                yield from _run(words[1:], warm_start)


def _train_with_sb3(env: str) -> None:
    """For a moment."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make(env)]))
    PPO("MlpPolicy", envs, n_steps=16, batch_size=16).learn(16).save(MODEL)
    envs.save(NORMALISED[0])


def _can_run(block: Block) -> bool:
    packages = [name for name in block.needs if name in ("jax", "envpool")]
    return len(packages) == len(block.needs) and all(map(importlib.util.find_spec, packages))


def _run(words: list[str], warm_start: WarmStart) -> Told:
    """What goes wrong with a command, at a size that a test has time for."""
    if "--help" not in words:
        words = _with_flags(words, _smaller(words), add=True) + ADDED.get(words[0], [])
    ended = warm_start.run(tuple(words), Path.cwd(), seconds=60)
    if ended.returncode:
        yield f"stoker {' '.join(words)} left with {ended.returncode}: {ended.stderr[-2000:]}"


def _smaller(words: list[str]) -> Flags:
    if words[0] == "train" and "dqn" not in words:
        return SMALLER["train"] | SMALLER_PPO
    if words[0] == "resume":  # one more iteration
        status = json.loads((Path("runs") / words[1] / "status.json").read_text())
        return {"--timesteps": str(status["env_steps"] + 1)}
    return SMALLER.get(words[0], {})


def _with_flags(words: list[str], flags: Flags, add: bool) -> list[str]:
    words = list(words)
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        elif add:
            words += [flag, value]
    return words


def _understand(words: list[str], patch: pytest.MonkeyPatch) -> Told:
    """What the command itself has against what was typed."""
    if words[0] == "pack" and "--" in words:
        yield from _understand(words[words.index("--") + 1 :], patch)
    with patch.context() as halted:
        for place in BEGINNINGS:
            halted.setattr(place, _begin)
        halted.setattr("stoker.cli.site.end_on_sigterm", lambda: None)
        try:
            main(_with_flags(words, FEWER.get(words[0], {}), add=False))
        except BeganError:
            return
        except SystemExit as left:
            if left.code:
                yield f"stoker {' '.join(words)} leaves with {left.code}; see above why"


def _begin(*_: Any, **__: Any) -> NoReturn:
    raise BeganError


def _of_others(words: list[str], block: Block) -> Told:
    """Commands that are not Stoker's: as much of them as can be looked at."""
    said = " ".join(words)
    if words[:2] == ["pip", "install"]:
        for extra in re.findall(r"(?:stoker|\.)\[([\w,]+)\]", said):
            if strange := {*extra.split(",")} - {*_extras()}:
                yield f"{said}: there is no extra {', '.join(sorted(strange))}"
    elif words[0] == "make":
        made = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        if made.returncode:
            yield f"{said}: {made.stderr}"
    elif words[0] == "ray":
        from ray.scripts.scripts import cli

        cli.commands[words[1]].make_context(words[1], words[2:])
    elif words[:3] == ["python", "-m", "bench"]:
        parser().parse_args(words[3:])
    elif words[:2] == ["python", "-m"] and words[2].startswith("bench."):
        if importlib.util.find_spec(words[2]) is None:
            yield f"{said}: there is no such module"
    elif said not in NOT_OURS:
        yield f"{said}: nobody knows how to look at this"
    if not block.needs:
        yield f"{said}: not Stoker's, and the block does not say what it needs"


def _extras() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["optional-dependencies"])


def _run_python(block: Block, warm_start: WarmStart) -> Told:
    text = block.text
    for long, short in SHORTER:
        text = long.sub(short, text)
    script = Path(block.file or f"block_{block.line}.py")
    script.write_text(text)
    ended = warm_start.run((str(script),), Path.cwd(), seconds=60, script=True)
    if ended.returncode:
        yield f"left with {ended.returncode}: {ended.stderr[-2000:]}"


def _resolve_imports(block: Block) -> Told:
    """Whether it is Python, and whether Stoker has what it imports from it."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker"):
            module = importlib.import_module(node.module or "")
            for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                yield f"{node.module} has no {name}"
