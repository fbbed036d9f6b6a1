"""The house as DESIGN.md draws it: imports go down only, workers are light, the loop is short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "stoker"

GROUND = {"types", "errors"}
LOW = GROUND | {"config"}
MIDDLE = {"envs", "pools", "nn", "kernels", "storage", "monitor", "runs"}
UPPER = {"algos", "collect", "learn"}
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "config": GROUND,
    **dict.fromkeys(MIDDLE, LOW),
    "storage": LOW | {"kernels"},
    "algos": LOW | {"nn", "kernels"},
    "collect": LOW | {"pools", "storage"},
    "learn": LOW | {"storage", "kernels"},
    "train": LOW | MIDDLE | UPPER,
    **dict.fromkeys(("tune", "jobs"), LOW | MIDDLE | UPPER | {"train"}),
    "sweep": LOW | MIDDLE | UPPER | {"train", "jobs"},
}
"""By room, the other rooms it may import. `cli` may import anything; see DASHBOARD for the last."""
DASHBOARD = {"stoker.runs.reader"}
EXEMPT = {"stoker", "stoker.__main__"}
"""The front door: lazy names under TYPE_CHECKING, and the command."""

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "misc", "manager", "managers"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(HOUSE.rglob("*.py"))}


def room_of(module: str) -> str:
    """`stoker.pools.base` is in the room `pools`; the package itself is in the room ``."""
    return module.partition(".")[2].partition(".")[0]


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and module of everything of ours that is imported, inside functions as well."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = [_named(source, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and _last_name(node.func) in (
            "import_module",
            "__import__",
        ):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        for name in names:
            if isinstance(name, str) and name.split(".")[0] == "stoker":
                yield node.lineno, name


def _named(source: str, name: str) -> str:
    """`from source import name`: a module where there is one of that name, else its home."""
    inner = f"{source}.{name}"
    known = inner in MODULES or source == "stoker"
    return inner if known else source


def _last_name(named: ast.expr) -> str:
    """`import_module` of `importlib.import_module`."""
    if isinstance(named, ast.Attribute):
        return named.attr
    return named.id if isinstance(named, ast.Name) else ""


def complaint(module: str, imported: str) -> str | None:
    """What is wrong with this import, if anything."""
    room, other = room_of(module), room_of(imported)
    if room in ("cli", other):
        return None
    if room == "dashboard":
        return None if imported in DASHBOARD else "the dashboard reads runs.reader alone"
    if room not in MAY_IMPORT:
        return f"DESIGN.md knows no room {room!r}"
    if other not in MAY_IMPORT[room]:
        return f"{room} may import {', '.join(sorted(MAY_IMPORT[room])) or 'nothing of ours'}"
    return None


def complaints(module: str, source: str, is_package: bool) -> list[str]:
    found = []
    for line, imported in imports(ast.parse(source), module, is_package):
        wrong = complaint(module, imported)
        if wrong:
            found.append(f"{module}:{line} imports {imported}, but {wrong}")
    return found


@pytest.mark.parametrize("module", [m for m in MODULES if m not in EXEMPT])
def test_imports_go_down_only(module: str) -> None:
    path = MODULES[module]
    assert complaints(module, path.read_text(), path.name == "__init__.py") == []


def test_every_room_is_on_the_plan() -> None:
    rooms = {room_of(module) for module in MODULES if module not in EXEMPT}
    assert rooms <= {*MAY_IMPORT, "cli", "dashboard"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("stoker.types", "from stoker.errors import StokerError"),
        ("stoker.config.load", "import stoker.nn.heads"),
        ("stoker.pools.base", "from stoker.envs.registry import EnvFactory"),
        ("stoker.pools.base", "from stoker import envs"),
        ("stoker.pools.base", "import stoker"),
        ("stoker.pools.base", "from ..nn import heads"),
        ("stoker.nn.heads", "def late():\n    from stoker.storage.rollout import RolloutStorage"),
        ("stoker.nn.heads", "import importlib\nimportlib.import_module('stoker.kernels')"),
        ("stoker.algos.ppo", "from stoker.storage.rollout import RolloutStorage"),
        ("stoker.collect.in_step", "from stoker.nn.actor_critic import ActorCritic"),
        ("stoker.learn.learner", "from stoker.algos import ppo"),
        ("stoker.train.loop", "from stoker.cli.main import main"),
        ("stoker.jobs.pack", "from stoker.sweep import space"),
        ("stoker.tune.search", "from stoker.jobs import pack"),
        ("stoker.dashboard.app", "from stoker.runs.folder import RunFolder"),
        ("stoker.dashboard.app", "from stoker.errors import StokerError"),
        ("stoker.cellar.rack", "from stoker.types import Loss"),
    ],
)
def test_the_rule_would_notice(module: str, source: str) -> None:
    assert len(complaints(module, source, is_package=False)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("stoker.storage.rollout", "from stoker.kernels import gather"),
        ("stoker.algos.ppo", "from stoker.nn.actor_critic import Evaluation"),
        ("stoker.learn.learner", "from . import executor\nfrom .executor import executable"),
        ("stoker.cli.main", "from stoker.dashboard import app\nfrom stoker import train"),
        ("stoker.dashboard.app", "from stoker.runs.reader import read\nfrom .pages import home"),
        ("stoker.runs.reader", "import stokerish"),
    ],
)
def test_the_rule_lets_through_what_the_plan_allows(module: str, source: str) -> None:
    assert complaints(module, source, is_package=False) == []


def test_nothing_is_named_for_having_no_name() -> None:
    places = [*HOUSE.rglob("*.py"), *(p for p in HOUSE.rglob("*") if p.is_dir())]
    assert [p for p in places if p.stem.lower() in FORBIDDEN_NAMES] == []


def test_what_workers_import_leaves_torch_out() -> None:
    """Measured in a process of its own: a worker with torch costs seconds and half a gigabyte."""
    modules = [
        "stoker.types",
        "stoker.errors",
        "stoker.config",
        "stoker.envs.registry",
        "stoker.envs.mission.env",
        "stoker.pools.inline",
        "stoker.pools.process",
        "stoker.pools.choose",
        "stoker.pools.on_ray",
    ]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_a_run_does_without_torchs_compiler() -> None:
    """Importing it takes longer than it takes to learn a simple task."""
    program = """if True:
        import sys
        from stoker.config import resolve
        from stoker.train.build import build
        given = {"n_envs": 8, "n_steps": 16, "batch_size": 64, "device": "cpu"}
        for env in ("tensor/CartPole-v1", "CartPole-v1"):
            parts = build(resolve({"env": env, "pool": "auto", **given}, on_gpu=False))
            parts.lesson(parts.collector.collect())
            parts.close()
        sys.exit("torch._dynamo" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def runtime_imports(tree: ast.Module) -> set[str]:
    """Top-level packages imported anywhere but under `if TYPE_CHECKING`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def test_the_ground_floor_never_imports_torch() -> None:
    ground = [m for m in MODULES if room_of(m) in LOW]
    assert len(ground) >= 3
    for module in ground:
        assert "torch" not in runtime_imports(ast.parse(MODULES[module].read_text())), module


def test_the_loop_fits_a_screen() -> None:
    tree = ast.parse((HOUSE / "train" / "loop.py").read_text())
    (run,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run")
    assert run.end_lineno is not None
    assert run.end_lineno - run.lineno + 1 <= 50


ON_THE_HOST = {f"collect/{name}" for name in ("acting", "episodes", "gather", "in_step")} | {
    "collect/overlapped",
    "collect/weights",
    "storage/staged",
    "pools/base",
}
ON_THE_DEVICE = {
    "collect/on_device",
    "learn/whole",
    "storage/on_device",
    "pools/on_device",
    "pools/tensor",
    "pools/draws",
}
WITH_TORCH = {"learn/executor", "learn/learner", "learn/microbatch", "algos/ppo"}
IN_KERNELS = {"learn/fused", "train/fused"}
BY_REPLAY = {"storage/priorities", "storage/replay", "learn/q_learner", "algos/dqn"}
BY_ROLLOUT = {"learn/learner", "learn/microbatch", "algos/ppo", "algos/returns"}
BY_TURNS, OVERLAPPED = {"collect/interleaved"}, {"collect/overlapped", "collect/weights"}
WAYS = {
    "host": ON_THE_DEVICE | IN_KERNELS | BY_REPLAY | BY_TURNS,
    "device": ON_THE_HOST | IN_KERNELS | BY_REPLAY | BY_TURNS,
    "kernels": ON_THE_HOST | WITH_TORCH | BY_REPLAY | BY_TURNS,
    "host, replay": ON_THE_DEVICE | IN_KERNELS | BY_ROLLOUT | BY_TURNS,
    "host, replay, by turns": ON_THE_DEVICE | IN_KERNELS | BY_ROLLOUT | OVERLAPPED,
    "device, replay": ON_THE_HOST | IN_KERNELS | BY_ROLLOUT | BY_TURNS,
}
"""The ways from a step to a gradient, and what lies on none but another. An algorithm has its own
end of the way: a rollout is learned from once, by PPO, a replay again and again, by DQN, which is
longer as there are two storages on it."""


@pytest.mark.parametrize("way", WAYS)
def test_from_environment_step_to_gradient_step_is_a_short_read(way: str) -> None:
    others, most = WAYS[way], 1700 if "replay" in way else 1500
    rooms = ("collect", "storage", "algos", "learn")
    found = {path for room in rooms for path in (HOUSE / room).rglob("*.py")}
    all_ways = ON_THE_HOST | ON_THE_DEVICE | WITH_TORCH | IN_KERNELS | {"train/loop"}
    found |= {HOUSE / f"{name}.py" for name in all_ways}
    files = found - {HOUSE / f"{name}.py" for name in others}
    assert len(files) > 10
    assert sum(len(path.read_text().splitlines()) for path in files) <= most


def test_every_explicit_synchronisation_carries_its_label() -> None:
    found = [
        (path.name, line)
        for path in HOUSE.rglob("*.py")
        for line in path.read_text().splitlines()
        if ".synchronize()" in line
    ]
    assert found
    for name, line in found:
        assert "# sync:" in line, (name, line)
