"""The ledger of a sweep: its trials in an Optuna storage, of which each is run to its end once.

A sweep of n trials has n places. A place waits, is taken, and is done when a trial of it was
completed or pruned; a trial that fails leaves its place to another. So the count is exact, however
many processes on however many machines take from it, and whichever of them is killed.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import ConfigError, StokerError
from stoker.sweep.course import TENTHS
from stoker.sweep.plan import Plan
from stoker.sweep.space import Choices, Space, Value

try:
    import optuna
    from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
    from optuna.trial import TrialState
except ImportError as missing:
    raise StokerError(
        "A sweep needs Optuna, which is not installed: pip install 'stoker[sweep]'"
    ) from missing

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")  # which we send ourselves

BEAT_S = 10
"""Between heartbeats of a trial that runs."""
_GRACE_S = 60
"""Without a heartbeat for so long, whoever ran a trial is taken for dead."""
_BUSY_S = 60.0
_CONNECT_S = 10
_FIRST_AT_RANDOM = 10
_FEWEST_TELLING = 8
"""Complete trials without which nothing can be said of what decides the reward."""
_PLAN, _PLACE, _BY, _WHY, _KILLS = "plan", "place", "by", "why", "kills"
_SEEDS, _STEPS = "seeds", "env_steps"
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class Taken(NamedTuple):
    """A trial that is ours to run."""

    number: int
    place: int
    drawn: dict[str, Value]
    trial: Any


class Row(NamedTuple):
    """A trial as it stands."""

    number: int
    place: int | None
    state: str
    """waiting, running, complete, pruned or failed."""
    value: float | None
    """The mean over the seeds of the reward at the end; None is unknown."""
    drawn: dict[str, Value]
    seeds: dict[str, float]
    """The reward of each seed that was trained to its end."""
    env_steps: int | None
    """Of a seed, in the mean."""
    why: str | None
    seconds: float | None
    """From its start to its end, or to now."""


class Ledger:
    """A sweep in a storage. Made by `begin` or `load`."""

    def __init__(self, storage: Any, study: Any, plan: Plan) -> None:
        self.plan = plan
        self._storage, self._study = storage, study

    @classmethod
    def begin(cls, url: str, name: str, plan: Plan, restarts: int) -> Ledger:
        """A new sweep; ConfigError where there is one of that name."""
        storage = _connect(url, restarts)
        try:
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize", **_methods(plan, 0)
            )
        except optuna.exceptions.DuplicatedStudyError as error:
            raise ConfigError(
                f"The storage has a sweep called {name} already. Go on with it with --resume, or "
                "choose another --name."
            ) from error
        study.set_user_attr(_PLAN, plan.as_json())
        ledger = cls(storage, study, plan)
        ledger.add_places()
        return ledger

    @classmethod
    def load(cls, url: str, name: str, restarts: int = 0) -> Ledger:
        """A sweep that was begun; ConfigError where there is none of that name."""
        storage = _connect(url, restarts)
        try:
            study = optuna.load_study(storage=storage, study_name=name)
            plan = Plan.from_json(study.user_attrs[_PLAN])
        except KeyError as error:
            known = ", ".join(optuna.get_all_study_names(storage)[:10])
            has = f"It has {known}." if known else "It has none."
            raise ConfigError(f"The storage has no sweep called {name}. {has}") from error
        methods = _methods(plan, len(study.get_trials(deepcopy=False)))
        study.sampler, study.pruner = methods["sampler"], methods["pruner"]
        return cls(storage, study, plan)

    def extend(self, trials: int) -> None:
        """Have so many trials in all."""
        self.plan = self.plan._replace(trials=trials)
        self._study.set_user_attr(_PLAN, self.plan.as_json())

    def add_places(self) -> None:
        """Those that nobody has: of a new sweep all, later what a kill or more trials left."""
        alive = self._study.get_trials(deepcopy=False)
        there = {t.user_attrs.get(_PLACE) for t in alive if t.state != TrialState.FAIL}
        for place in range(self.plan.trials):
            if place not in there:
                self._study.enqueue_trial({}, user_attrs={_PLACE: place})

    def take(self, by: str) -> Taken | None:
        """The next trial to run, for as long as heartbeats are sent; None if none waits."""
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return None
        trial = self._study.ask()
        self._storage.record_heartbeat(trial._trial_id)
        place = trial.user_attrs.get(_PLACE)
        if place is None or self._has_twin(trial.number, place):
            self._study.tell(trial, state=TrialState.FAIL)  # another was quicker
            return None
        trial.set_user_attr(_BY, by)
        return Taken(trial.number, place, draw(trial, self.plan.space), trial)

    def _has_twin(self, number: int, place: int) -> bool:
        others = self._study.get_trials(deepcopy=False)
        states = (*_DONE, TrialState.RUNNING)
        return any(
            t.user_attrs.get(_PLACE) == place and t.number != number and t.state in states
            for t in others
        )

    def beat(self, taken: Sequence[Taken]) -> None:
        """That these are being run; and have those that nobody runs any more run again."""
        for each in taken:
            self._storage.record_heartbeat(each.trial._trial_id)
        optuna.storages.fail_stale_trials(self._study)

    def report(self, taken: Taken, step: int, value: float) -> bool:
        """The reward so far; whether to give the trial up."""
        try:
            taken.trial.report(value, step)
        except UpdateFinishedTrialError:  # taken for dead, and given to somebody else
            return True
        return bool(taken.trial.should_prune())

    def complete(self, taken: Taken, seeds: Mapping[int, float], env_steps: Sequence[int]) -> None:
        """All seeds were trained to the end, to these rewards and for so many steps each."""
        told = {str(seed): reward for seed, reward in seeds.items()}
        _note(taken, {_SEEDS: told, _STEPS: round(sum(env_steps) / len(env_steps))})
        self._study.tell(taken.trial, sum(told.values()) / len(told), skip_if_finished=True)

    def prune(self, taken: Taken, why: str) -> None:
        """It was given up, and counts."""
        _note(taken, {_WHY: why})
        self._study.tell(taken.trial, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, taken: Taken, why: str) -> None:
        """It could not be run with what it drew: its place goes to another draw."""
        self._end(taken, why)
        self._study.enqueue_trial({}, user_attrs={_PLACE: taken.place})

    def lose(self, taken: Taken, why: str) -> None:
        """It was killed: the same is run again, up to as many times as there are restarts."""
        callback = self._storage.get_heartbeat_stale_trial_callback()
        callback(self._study, self._end(taken, why))

    def give_back(self, taken: Taken) -> None:
        """It was stopped with the sweep: the same is run when that goes on."""
        _enqueue_again(self._study, self._end(taken, "the sweep was stopped"), kill=False)

    def _end(self, taken: Taken, why: str) -> Any:
        _note(taken, {_WHY: why})
        return self._study.tell(taken.trial, state=TrialState.FAIL, skip_if_finished=True)

    def mend(self, by: str | None) -> int:
        """Have run again what was running when it was killed: all, or what was taken `by` us and
        what nobody had put a name to. How many that are. Nobody else may run as us."""
        callback = self._storage.get_heartbeat_stale_trial_callback()
        lost = 0
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            nameless = _BY not in trial.user_attrs and _age(trial) > _GRACE_S
            if by is None or trial.user_attrs.get(_BY) == by or nameless:
                callback(self._study, self._study.tell(trial.number, state=TrialState.FAIL))
                lost += 1
        return lost

    def rows(self) -> list[Row]:
        """All trials, in the order in which they were made."""
        return [_row(trial) for trial in self._study.get_trials(deepcopy=False)]

    def importances(self) -> dict[str, float]:
        """How much of the reward each setting decides, the most first; empty if unknown."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        if len(self._study.get_trials(deepcopy=False, states=_DONE[:1])) < _FEWEST_TELLING:
            return {}
        try:
            return dict(get_param_importances(self._study, evaluator=PedAnovaImportanceEvaluator()))
        except (ValueError, RuntimeError, ZeroDivisionError):  # too few, or all alike
            return {}


def _note(taken: Taken, told: Mapping[str, Any]) -> None:
    """Of a trial that is still ours; if it was taken for dead, somebody else runs it by now."""
    with suppress(UpdateFinishedTrialError):
        for name, value in told.items():
            taken.trial.set_user_attr(name, value)


class _Again:
    """What becomes of a trial that was killed."""

    def __init__(self, restarts: int) -> None:
        self._restarts = restarts

    def __call__(self, study: Any, trial: Any) -> None:
        if trial.user_attrs.get(_KILLS, 0) < self._restarts:
            _enqueue_again(study, trial, kill=True)
        else:  # its settings may be what kills it
            study.enqueue_trial({}, user_attrs={_PLACE: trial.user_attrs.get(_PLACE)})


def _enqueue_again(study: Any, trial: Any, kill: bool) -> None:
    kills = trial.user_attrs.get(_KILLS, 0) + kill
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={_PLACE: trial.user_attrs.get(_PLACE), _KILLS: kills},
            system_attrs={"retry_history": [trial.number]},
        )
    )


def draw(trial: Any, space: Space) -> dict[str, Value]:
    """A value for each setting; of an Optuna trial that has them already, those."""
    drawn: dict[str, Value] = {}
    for name, spread in space.items():
        if isinstance(spread, Choices):
            drawn[name] = trial.suggest_categorical(name, spread.values)
        elif spread.whole:
            ends, step = (int(spread.low), int(spread.high)), int(spread.step or 1)
            drawn[name] = trial.suggest_int(name, *ends, step=step, log=spread.log)
        else:
            span = (spread.low, spread.high)
            drawn[name] = trial.suggest_float(name, *span, step=spread.step, log=spread.log)
    return drawn


def identity(folder: Path) -> str:
    """Who we are, to others that take trials of the same sweep."""
    return f"{socket.gethostname()}:{folder.resolve()}"


def _methods(plan: Plan, made: int) -> dict[str, Any]:
    """How settings are drawn and trials are pruned; a sweep that goes on draws what is new."""
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=_FIRST_AT_RANDOM,
        multivariate=True,
        constant_liar=True,  # trials that run at once draw apart
        seed=plan.seeds[0] + made,
    )
    steps, half = TENTHS * len(plan.seeds), TENTHS // 2
    pruners: dict[str, Any] = {
        "median": optuna.pruners.MedianPruner(5, n_warmup_steps=half, interval_steps=half),
        "halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, steps // 10)),
        "none": optuna.pruners.NopPruner(),
    }
    return {"sampler": sampler, "pruner": pruners[plan.pruner]}


def _connect(url: str, restarts: int) -> Any:
    local = url.startswith("sqlite")
    arguments = {"timeout": _BUSY_S} if local else {"connect_timeout": _CONNECT_S}
    try:
        return optuna.storages.RDBStorage(
            url,
            engine_kwargs={"connect_args": arguments},
            heartbeat_interval=BEAT_S,
            grace_period=_GRACE_S,
            heartbeat_stale_trial_callback=_Again(restarts),
        )
    except Exception as error:  # of SQLAlchemy, of any driver, or none for this URL
        raise ConfigError(
            f"The storage {hidden(url)} cannot be used: {_first_line(error)}. It must be a URL "
            "such as sqlite:///sweeps.db or postgresql://user@host/sweeps, of a database that can "
            "be reached and whose driver is installed."
        ) from error


@contextmanager
def reached(url: str) -> Iterator[None]:
    """A storage that cannot be reached any more is a sentence."""
    try:
        yield
    except StorageInternalError as error:
        raise StokerError(
            f"The storage {hidden(url)} failed: {_first_line(error.__cause__ or error)}. Go on "
            "with --resume when it is back."
        ) from error


def hidden(url: str) -> str:
    """A URL without its password."""
    before, at, host = url.rpartition("@")
    scheme, colons, user = before.partition("://")
    return f"{scheme}{colons}{user.partition(':')[0]}@{host}" if at else url


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _row(trial: Any) -> Row:
    state = {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())
    attributes = trial.user_attrs
    value = trial.value if trial.state == TrialState.COMPLETE else None
    place, why = attributes.get(_PLACE), attributes.get(_WHY)
    seeds = dict(attributes.get(_SEEDS, {}))
    seconds = None if trial.datetime_start is None else _age(trial)
    drawn, steps = dict(trial.params), attributes.get(_STEPS)
    return Row(trial.number, place, state, value, drawn, seeds, steps, why, seconds)


def _age(trial: Any) -> float:
    if trial.datetime_start is None:
        return 0.0
    return float(
        ((trial.datetime_complete or datetime.now()) - trial.datetime_start).total_seconds()
    )
