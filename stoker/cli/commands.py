"""The commands: where each lives, what it does, and what to type."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command; its file is imported only when it is called."""

    module: str
    function: str
    summary: str
    examples: tuple[str, ...]
    trains: bool = False


COMMANDS = {
    "train": Command(
        "stoker.cli.train",
        "train",
        "train an agent",
        (
            "stoker train --env CartPole-v1 --timesteps 100k",
            "stoker train --env my_module:MyEnv --preset heavy --timesteps 50M",
            "stoker train --env Acrobot-v1 --n-envs 8 --batch-size auto --lr 3e-4",
            "stoker train --config settings.yaml --seed 3",
            "stoker train --env tensor/CartPole-v1 --network-arch 64,64 --population 64 "
            "--vary lr=1e-4..1e-2",
        ),
        trains=True,
    ),
    "resume": Command(
        "stoker.cli.train",
        "resume",
        "go on with a run that was stopped",
        ("stoker resume my-run", "stoker resume runs/my-run --timesteps 2M"),
        trains=True,
    ),
    "eval": Command(
        "stoker.cli.inspect",
        "evaluate",
        "measure a trained agent",
        (
            "stoker eval my-run",
            "stoker eval my-run --checkpoint best --episodes 100 --json",
            "stoker eval my-population --agent 3",
        ),
    ),
    "import": Command(
        "stoker.cli.moving_in",
        "import_model",
        "make a run of a model that Stable-Baselines3 saved",
        (
            "stoker import model.zip --env CartPole-v1",
            "stoker import model.zip --env my_module:MyEnv --normalize stats.npz --run-name moved",
            "stoker import model.zip --env my_module:MyEnv --n-envs 32 --timesteps 5M",
        ),
    ),
    "runs": Command(
        "stoker.cli.inspect",
        "runs",
        "list runs",
        ("stoker runs", "stoker runs --sort reward --json"),
    ),
    "presets": Command(
        "stoker.cli.inspect", "presets", "list presets", ("stoker presets", "stoker presets --json")
    ),
    "check": Command(
        "stoker.cli.check",
        "check",
        "see whether an environment keeps its contract, and which pool it would get",
        (
            "stoker check tensor/CartPole-v1",
            "stoker check my_module:MyEnv --env-kwargs '{gravity: 9.8}' --json",
        ),
    ),
    "doctor": Command(
        "stoker.cli.doctor",
        "doctor",
        "measure for a minute what a run would spend its time on, and how long it would take",
        (
            "stoker doctor --env CartPole-v1",
            "stoker doctor --env my_module:MyEnv --preset heavy --timesteps 50M --json",
        ),
    ),
    "tune": Command(
        "stoker.cli.tune",
        "tune",
        "search for quicker settings on this machine, and keep them for --preset auto",
        (
            "stoker tune --env my_module:MyEnv",
            "stoker tune --env my_module:MyEnv --preset heavy --allow-learning",
            "stoker tune --env CartPole-v1 --allow-learning --until-reward 400",
        ),
    ),
    "monitor": Command(
        "stoker.cli.monitor",
        "monitor",
        "show what GPUs, cores and memory do, on this machine or beside a run",
        (
            "stoker monitor",
            "stoker monitor my-run",
            "stoker monitor --once --json",
            "stoker monitor --csv --every 5 > machine.csv",
        ),
    ),
    "report": Command(
        "stoker.cli.report",
        "report",
        "say where the time of a run went, or compare runs, on a page",
        (
            "stoker report my-run",
            "stoker report before after --out comparison.html",
            "stoker report my-run --trace my-run.trace.json",
            "stoker report my-run --json",
        ),
    ),
    "pack": Command(
        "stoker.cli.pack",
        "pack",
        "train several runs at once on one GPU",
        (
            "stoker pack -n 4 -- train --env CartPole-v1 --preset heavy --timesteps 2M",
            "stoker pack jobs.yaml --at-once 2 --json",
            "stoker pack -n 8 --cores-each 4 --mps off -- train --env Acrobot-v1 --seed 10",
        ),
    ),
    "sweep": Command(
        "stoker.cli.sweep",
        "sweep",
        "search for settings that come to a higher reward, trial by trial",
        (
            "stoker sweep --env CartPole-v1 --trials 100 --jobs 4 --budget 1m",
            "stoker sweep --env my_module:MyEnv --space space.yaml --budget 10m --name mine",
            "stoker sweep --name mine --resume --trials 200",
            "stoker sweep show mine",
        ),
    ),
    "site": Command(
        "stoker.cli.site",
        "site",
        "serve synthetic web sites to crawl, on this machine",
        (
            "stoker site serve",
            "stoker site serve --port 0 --latency 0.05 --tail 0.02 --processes 2",
            "stoker site serve --errors 0.02 --resets 0.01 --broken 0.1 --slow 0.01",
            "stoker site serve --pages 2k --targets 0.05 --traps 0.3",
        ),
    ),
}
