"""What a replay has seen, saved while it goes on: whole, of one moment, and nobody is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stoker.errors import CheckpointError
from stoker.runs import checkpoint as checkpoints
from stoker.runs.checkpoint import Checkpoint
from stoker.storage.replay import Replay
from stoker.train.saving import Saver
from stoker.train.snapshot import Snapshot, restore, state_of
from stoker.types import PLAIN, ActionSpec, EnvSpec, Finals, LeafSpec, Rollout

N, T = 2, 3
ACTIONS = ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,))
SPEC = EnvSpec("made up", {PLAIN: LeafSpec("vector", (1,), "float32")}, ACTIONS)
SLOT_BYTES = 4 * N
NONE_ENDED = Finals(torch.zeros(0, dtype=torch.int64), {PLAIN: torch.zeros(0, 1)})


def replay_of(length: int) -> Replay:
    return Replay(SPEC, length * N, N, 1, 0.99, 0.0, torch.device("cpu"))


def append(replay: Replay, number: int, valid: Tensor | None = None) -> None:
    """T steps of which each sees another number; where they are not `valid`, there was none."""
    seen = torch.arange(number * T * N, (number + 1) * T * N, dtype=torch.float32).view(T, N)
    zero, no = torch.zeros(T, N), torch.zeros(T, N, dtype=torch.bool)
    count = zero.long()
    rollout = Rollout(
        {PLAIN: seen.unsqueeze(-1)},
        count.unsqueeze(-1),
        None,
        zero,
        count,
        *(zero, zero, zero),
        *(no, no),
        zero,
        ~no if valid is None else valid,
        zero[0],
        None,
    )
    replay.append(rollout, NONE_ENDED)


def put_together(parts: Iterable[dict[str, Tensor]], replay: Replay) -> Tensor:
    """As a replay that is restored from them sees it."""
    twin = replay_of(replay.length)
    restore(twin, state_of(replay), parts)
    return twin.obs[PLAIN][:-1]


@given(
    length=st.integers(14, 40),
    before=st.integers(0, 15),
    beside=st.integers(0, 10),
    slots=st.integers(1, 9),
    seed=st.integers(0, 100),
)
def test_what_is_saved_is_of_one_moment(
    length: int, before: int, beside: int, slots: int, seed: int
) -> None:
    """However the rings are filled, and whatever is written while parts are taken."""
    rng, replay = np.random.default_rng(seed), replay_of(length)
    masks = [torch.from_numpy(rng.random((T, N)) < 0.8) for _ in range(before + beside)]
    for number in range(before):
        append(replay, number, masks[number])
    expected, state = replay.obs[PLAIN][:-1].clone(), state_of(replay)
    state = {name: value.clone() for name, value in state.items()}
    snapshot = Snapshot(replay, slots * SLOT_BYTES)
    snapshot.hold()

    def go_on() -> None:
        for number in range(before, before + beside):
            append(replay, number, masks[number])

    writer = threading.Thread(target=go_on)
    writer.start()
    parts = [{name: value.clone() for name, value in part.items()} for part in snapshot]
    snapshot.release()
    writer.join(10)
    assert not writer.is_alive()
    written = state["kind"] != 0
    found = put_together(parts, replay)
    assert torch.equal(found[: len(written)][written], expected[: len(written)][written])
    largest = max((len(part[f"obs.{PLAIN}"]) for part in parts), default=0)
    assert largest <= slots * N


def test_the_replay_waits_where_it_would_overwrite_what_was_not_taken() -> None:
    replay = replay_of(4 * T)
    for number in range(4):
        append(replay, number)  # full: from here on the oldest are overwritten
    snapshot = Snapshot(replay, T * SLOT_BYTES)
    snapshot.hold()
    parts = iter(snapshot)
    first = next(parts)
    writer = threading.Thread(target=append, args=(replay, 4))
    writer.start()
    writer.join(0.2)
    assert writer.is_alive()
    assert first[f"obs.{PLAIN}"].flatten().tolist() == list(range(T * N))
    next(parts)
    next(parts)  # so two parts were taken: T steps may have become 2 T rows
    writer.join(10)
    assert not writer.is_alive()
    snapshot.release()
    append(replay, 5)
    append(replay, 6)


def checkpoint_of(replay: Replay, slots: int = 5) -> Checkpoint:
    return Checkpoint(state_of(replay), {"it": 1}, {}, Snapshot(replay, slots * SLOT_BYTES))


def test_a_checkpoint_with_a_replay_is_written_beside_and_read_in_parts(tmp_path: Path) -> None:
    replay, saver = replay_of(16), Saver(tmp_path, keep=3)
    for number in range(7):
        append(replay, number)
    expected, state = replay.obs[PLAIN][:-1].clone(), state_of(replay)["kind"].clone()
    saver.begin(7, checkpoint_of(replay), None)
    append(replay, 7)
    outcome = saver.heard(wait=True)
    assert outcome == (7, True, None)
    assert saver.heard() is None
    saved = checkpoints.load(tmp_path / checkpoints.step_name(7))
    assert len(list(saved.rows)) == 4
    assert torch.equal(saved.tensors["kind"], state)
    assert torch.equal(put_together(saved.rows, replay), expected)


def test_a_part_that_is_changed_missing_or_too_many_is_refused(tmp_path: Path) -> None:
    replay, saver = replay_of(16), Saver(tmp_path, keep=3)
    for step in (1, 2):
        append(replay, step)
        saver.begin(step, checkpoint_of(replay, slots=2), None)
        saver.heard(wait=True)
    newest = tmp_path / checkpoints.step_name(2)
    part = newest / "rows-00001.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"rows-00001.safetensors: its SHA-256 is"):
        checkpoints.load(newest)
    with pytest.warns(UserWarning, match="Skipped a damaged checkpoint"):
        where, _ = checkpoints.load_newest(tmp_path)
    assert where.name == checkpoints.step_name(1)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"rows-00001.safetensors: it is missing"):
        checkpoints.load(newest)
    part.write_bytes(whole)
    manifest = newest / "manifest.json"
    manifest.write_text(manifest.read_text().replace("rows-00001", "rows-00009"))
    with pytest.raises(CheckpointError, match="it does not name every file of rows"):
        checkpoints.load(newest)


def test_a_disk_that_fails_is_told_of_and_holds_nobody_up(tmp_path: Path) -> None:
    replay, saver = replay_of(4 * T), Saver(tmp_path / "gone", keep=3)
    for number in range(5):
        append(replay, number)
    saver.begin(5, checkpoint_of(replay), None)
    outcome = saver.heard(wait=True)
    assert outcome is not None
    assert not outcome.written
    assert "the run's folder is gone" in str(outcome.trouble)
    for number in range(5, 12):
        append(replay, number)  # not held up


def test_a_thread_that_cannot_start_is_an_error_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, saver = replay_of(4 * T), Saver(tmp_path, keep=3)
    for number in range(5):
        append(replay, number)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            saver.begin(5, checkpoint_of(replay), None)
    assert saver.heard(wait=True) is None
    append(replay, 5)  # not held up


def test_what_follows_the_newest_rows_of_a_ring_that_is_not_full_is_free_at_once() -> None:
    replay = replay_of(12 * T)
    append(replay, 0)
    snapshot = Snapshot(replay)
    snapshot.hold()
    for number in range(1, 5):
        append(replay, number)  # though nobody has taken anything yet
    parts = list(snapshot)
    snapshot.release()
    assert [part[f"obs.{PLAIN}"].flatten().tolist() for part in parts] == [list(range(T * N))]


def test_what_goes_wrong_in_the_thread_is_raised_by_whoever_hears_of_it(tmp_path: Path) -> None:
    replay, saver = replay_of(4 * T), Saver(tmp_path, keep=3)
    append(replay, 0)
    saver.begin(1, checkpoint_of(replay)._replace(state={"no": object()}), None)
    with pytest.raises(TypeError):
        saver.heard(wait=True)
    append(replay, 1)
