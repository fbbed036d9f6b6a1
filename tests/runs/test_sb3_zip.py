"""Models of Stable-Baselines3 are read, and nothing in them is run, whatever they hold."""

from __future__ import annotations

import base64
import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sb3_models
import torch

from stoker.errors import ModelFileError
from stoker.runs.sb3_zip import read_model
from stoker.train.sb3_layers import algorithm_of, layers_of

Change = Callable[[dict[str, bytes]], None]


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Gaussian actions, so that it has every kind of weight."""
    made = sb3_models.trained("PPO", "Pendulum-v1", 64)
    return sb3_models.saved(made, tmp_path_factory.mktemp("models") / "model.zip")


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_model(path)
    return str(caught.value)


def test_what_is_read_are_the_facts_and_the_weights(model: Path) -> None:
    found = read_model(model)
    assert found.facts["n_steps"] == 64
    assert found.tensors["log_std"].shape == (1,)
    assert found.version == zipfile.ZipFile(model).read("_stable_baselines3_version").decode()
    assert algorithm_of(found) == "ppo"
    assert [len(layer.bias) for layer in layers_of(found, "ppo").actor] == [64, 64]


def test_pickles_in_the_json_are_left_alone(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    blob = base64.b64encode(pickle.dumps(Touch(marker))).decode()

    def change(entries: dict[str, bytes]) -> None:
        data = json.loads(entries["data"])
        held = [value for value in data.values() if isinstance(value, dict)]
        for value in held:
            if ":serialized:" in value:
                value[":serialized:"] = blob
        entries["data"] = json.dumps(data).encode()
        for name in ("pytorch_variables.pth", "policy.optimizer.pth"):
            entries[name] = pickle.dumps(Touch(marker))

    hostile = sb3_models.rewritten(model, tmp_path / "hostile.zip", change)
    words = ("--env", "Pendulum-v1", "--runs-dir", str(tmp_path / "runs"), "--device", "cpu")
    ended = subprocess.run(
        [sys.executable, "-m", "stoker", "import", str(hostile), *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert not marker.exists()
    pickle.loads(base64.b64decode(blob))
    assert marker.exists(), "it would have been touched"


def hostile_weights(marker: Path) -> dict[str, bytes]:
    """Code in place of tensors, in every format that torch reads."""
    found = {f"protocol {n}": pickle.dumps(Touch(marker), n) for n in range(6)}
    for zipped in (True, False):
        written = io.BytesIO()
        torch.save({"log_std": Touch(marker)}, written, _use_new_zipfile_serialization=zipped)
        found[f"torch.save, zipped: {zipped}"] = written.getvalue()
    return found


def test_code_in_the_weights_is_refused_and_not_run(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, weights in hostile_weights(marker).items():

        def change(entries: dict[str, bytes], weights: bytes = weights) -> None:
            entries["policy.pth"] = weights

        said = refused(sb3_models.rewritten(model, tmp_path / "hostile.zip", change))
        assert not marker.exists(), name
        assert "Nothing in it was run" in said
        wrong = "holds more than tensors, which could run code" if "True" in name else "torch 1.6"
        assert wrong in said, name
    torch.load(io.BytesIO(weights), weights_only=False)
    assert marker.exists(), "it would have been touched"


def _zeros(name: str) -> Change:
    def change(entries: dict[str, bytes]) -> None:
        entries[name] = bytes(20_000_000)

    return change


@pytest.mark.parametrize("name", ["data", "policy.pth"])
def test_a_bomb_is_not_unpacked(name: str, model: Path, tmp_path: Path) -> None:
    how = {"compression": zipfile.ZIP_DEFLATED}
    path = sb3_models.rewritten(model, tmp_path / "bomb.zip", _zeros(name), **how)
    assert path.stat().st_size < 200_000
    assert f"{name} would grow from" in refused(path)


def test_a_size_past_all_models_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.runs.sb3_zip._LIMITS", {"data": 1000, "policy.pth": 1000})
    assert "bytes, and 1,000 are the most" in refused(model)


def test_a_bomb_among_the_weights_is_not_unpacked(model: Path, tmp_path: Path) -> None:
    def change(entries: dict[str, bytes]) -> None:
        packed = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(entries["policy.pth"])) as inner,
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as outer,
        ):
            for name in inner.namelist():
                big = bytes(20_000_000) if name.endswith("/data/0") else inner.read(name)
                outer.writestr(name, big)
        entries["policy.pth"] = packed.getvalue()

    said = refused(sb3_models.rewritten(model, tmp_path / "bomb.zip", change))
    assert "policy.pth would grow from" in said


def test_a_tensor_that_claims_more_than_it_has(model: Path, tmp_path: Path) -> None:
    def change(entries: dict[str, bytes]) -> None:
        huge = torch.zeros(1).expand(10**12)
        sb3_models.with_weights(entries, lambda weights: weights | {"log_std": huge})

    said = refused(sb3_models.rewritten(model, tmp_path / "huge.zip", change))
    assert "'log_std' in policy.pth has fewer numbers than it says" in said


def _without(name: str) -> Change:
    return lambda entries: (entries.pop(name), None)[1]


def _weights(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda entries: sb3_models.with_weights(entries, change)


def _bytes(name: str, content: bytes) -> Change:
    return lambda entries: entries.update({name: content})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without("data"), "has no entry 'data', but pytorch_variables.pth, policy.pth"),
        (_without("policy.pth"), "has no entry 'policy.pth'"),
        (_bytes("data", b"{"), "data is not JSON"),
        (_bytes("data", b"[" * 100_000), "data is not JSON"),
        (_bytes("data", b"[]"), "data is not one JSON object"),
        (_bytes("policy.pth", b"PK"), "not the archive that torch.save"),
        (_weights(lambda weights: list(weights.values())), "holds a list, not tensors by name"),
        (_weights(lambda weights: {"log_std": 3}), "'log_std', which is int and no weights"),
        (
            _weights(lambda weights: {"n": torch.zeros(2, dtype=torch.int64)}),
            "which is torch.int64 and no weights",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    change: Change, says: str, model: Path, tmp_path: Path
) -> None:
    said = refused(sb3_models.rewritten(model, tmp_path / "bad.zip", change))
    assert says in said
    assert "Expected is what model.save() of Stable-Baselines3 writes for PPO or DQN" in said


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("not a model")
    assert "it is no zip archive" in refused(tmp_path / "text.zip")


def test_a_damaged_archive(model: Path, tmp_path: Path) -> None:
    content = bytearray(model.read_bytes())
    content[content.index(b'"policy_class"') + 2] ^= 1
    (tmp_path / "bad.zip").write_bytes(content)
    assert "data is damaged (Bad CRC-32" in refused(tmp_path / "bad.zip")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"action_net.weight": torch.zeros(1, 63)},
            "has a layer of 64 units before one that takes 63",
        ),
        ({"action_net.bias": torch.zeros(2)}, "biases of shape (2,)"),
        ({"value_net.weight": torch.zeros(2, 64), "value_net.bias": torch.zeros(2)}, "2 values"),
        ({"log_std": torch.zeros(3)}, "has deviations of shape (3,)"),
        ({"log_std": torch.full((1,), float("nan"))}, "log_std in bad.zip is not finite"),
        ({"mlp_extractor.policy_net.0.bias": None}, "has no mlp_extractor.policy_net.0.bias"),
        ({"mlp_extractor.policy_net.5.weight": torch.zeros(2, 2)}, "no part of a plain MLP"),
        (
            {"mlp_extractor.value_net.0.weight": torch.zeros(64, 9)},
            "actor and critic do not see the same",
        ),
        ({"quantile_net.0.weight": torch.zeros(1)}, "as QR-DQN has"),
        ({"lstm_actor.weight": torch.zeros(1)}, "as RecurrentPPO has"),
    ],
)
def test_weights_of_wrong_shapes_are_named(
    change: dict[str, Any], says: str, model: Path, tmp_path: Path
) -> None:
    def changed(weights: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in (weights | change).items() if v is not None}

    path = sb3_models.rewritten(model, tmp_path / "bad.zip", _weights(changed))
    found = read_model(path)
    with pytest.raises(ModelFileError) as caught:
        layers_of(found, algorithm_of(found))
    assert says in str(caught.value)
