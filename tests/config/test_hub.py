"""Names on a hub, fetched from one on this machine: which commit, which files, what is noted, and
every refusal.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hub_server import HubServer, environment_of, read_files, serve_hub
from tiny_recipe import RECIPE, REWARDS

from lockstep.algorithms.rows import group_files
from lockstep.cli import main
from lockstep.config.hub import fetch_names
from lockstep.config.hub_name import PINS, parse_name_of_kind
from lockstep.config.loading import LoadedRecipe, load_recipe, load_run
from lockstep.core.errors import InputError
from lockstep.data.files import open_rows
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import words_tokenizer
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.train import train_recipe

MODEL, ROWS = "hf:ada/tiny", "hf:datasets/ada/sums/train.jsonl"
QUESTIONS = [{"question": f"{i} + {i} =", "answer": str(2 * i)} for i in range(32)]
SECRET = "hf_secretsecretsecret"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small model, and some that are none of a run's business."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = words_tokenizer(f"{row['question']} {row['answer']}" for row in QUESTIONS)
    model = build_causal_lm(RECIPE["model"]["scratch"]["config"], tokenizer, 0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    others = {
        "modeling_ada.py": b"raise SystemExit('this ran')",
        "pytorch_model.bin": b"pickled",
        "README.md": b"# Ada",
    }
    return read_files(folder) | others


@pytest.fixture
def hub(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]
) -> Iterator[HubServer]:
    with serve_hub() as server:
        for variable, value in {
            **environment_of(server.url, in_tmp / "cache"),
            "HF_TOKEN": SECRET,
        }.items():
            monkeypatch.setenv(variable, value)
        server.push("models/ada/tiny", files)
        server.push(
            "datasets/ada/sums",
            {"train.jsonl": "".join(json.dumps(row) + "\n" for row in QUESTIONS).encode()},
        )
        (in_tmp / "rewards.py").write_text(REWARDS)
        recipe = {
            **RECIPE,
            "model": {"path": MODEL},
            "data": {**RECIPE["data"], "train": ROWS, "validation": ROWS},
        }
        recipe["data"].pop("task")
        recipe["run"] = {"max_steps": 1, "save_every": 1}
        (in_tmp / "tiny.yaml").write_text(yaml.safe_dump(recipe))
        yield server


def tiny(*overrides: str) -> LoadedRecipe:
    return load_recipe("tiny.yaml", list(overrides))


def renamed(files: dict[str, bytes], **changes: bytes | None) -> dict[str, bytes]:
    """Files with some changed, and without those that are None; `__` stands for a dot."""
    changed = {**files, **{name.replace("__", "."): data for name, data in changes.items()}}
    return {name: data for name, data in changed.items() if data is not None}


def test_run_pins_one_hub_commit_and_never_fetches_a_newer_one(
    hub: HubServer, files: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = train_recipe(tiny())
    said = capfd.readouterr()
    # main has moved, and is broken now
    moved = hub.push("models/ada/tiny", renamed(files, config__json=b"{}"))
    pins = json.loads((folder / PINS).read_text())
    assert pins[MODEL] != moved
    assert f"{MODEL} is commit {pins[MODEL]}" in said.err
    assert SECRET not in said.err + said.out
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["model"]["path"] == MODEL
    assert load_run(folder).pins == pins
    hub.asked.clear()
    assert train_recipe(tiny()) == folder  # it is finished, and nothing is asked
    assert not hub.asked
    shutil.rmtree(folder / "final")
    hub.gated.add("models/ada/tiny")
    assert (
        train_recipe(tiny()) == folder
    )  # all of the commit is here, so its terms are nothing to the run
    assert not hub.asked
    hub.gated.clear()
    next(Path("cache").glob("models--*/snapshots/*/config.json")).unlink()
    fetch_names(tiny())
    assert any(pins[MODEL] in path for path in hub.asked)
    assert all(moved not in path for path in hub.asked)
    text = "".join(path.read_text(errors="replace") for path in folder.rglob("*.json*"))
    assert SECRET not in text
    assert "blobs" not in (folder / "samples.jsonl").read_text()
    assert '"train.jsonl' in (folder / "samples.jsonl").read_text()


def test_only_needed_model_files_are_fetched_from_hub(hub: HubServer) -> None:
    path = Path(str(fetch_names(tiny()).training_recipe.model.path))
    fetched = {file.name for file in path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert fetched.isdisjoint({"modeling_ada.py", "pytorch_model.bin", "README.md"})


def test_dry_run_does_not_download_weights_from_hub(hub: HubServer) -> None:
    assert "can start" in dry_run(tiny())
    assert not list(Path("cache").rglob("*.safetensors"))
    hub.code = 451
    with pytest.raises(
        InputError,
        match=f"{MODEL} is incomplete on this machine, and the hub returned status",
    ):
        fetch_names(tiny())
    hub.code, hub.torn = 0, "model.safetensors"
    with pytest.raises(
        InputError,
        match=f"{MODEL} is incomplete on this machine, and the hub returned status",
    ):
        fetch_names(tiny())


def test_cached_hub_files_are_used_without_network(
    hub: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = fetch_names(tiny())
    hub.code = 451
    assert fetch_names(tiny()).training_recipe == here.training_recipe
    assert (
        f"{MODEL} is commit {Path(str(here.training_recipe.model.path)).name}"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert fetch_names(tiny()).training_recipe == here.training_recipe
    with pytest.raises(
        InputError,
        match=r"hf:ada/other is incomplete on this machine, and HF_HUB_OFFLINE blocks access",
    ):
        fetch_names(tiny("model.path=hf:ada/other"))
    assert not hub.asked


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer.json", "generation_config.json"])
def test_incomplete_cached_hub_model_is_rejected_without_network(hub: HubServer, lost: str) -> None:
    folder = Path(str(fetch_names(tiny()).training_recipe.model.path))
    (folder / lost).unlink()
    hub.code = 451
    with pytest.raises(
        InputError, match=f"{MODEL} is incomplete on this machine, and the hub returned"
    ):
        fetch_names(tiny())


def test_exactly_the_indexed_weight_shards_are_fetched_from_hub(
    hub: HubServer, files: dict[str, bytes]
) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    ).encode()
    shards = {f"model-{number}-of-2.safetensors": b"a" for number in (1, 2)}
    others = {"model.safetensors": None, "original/model-1.safetensors": b"x"}
    hub.push(
        "models/ada/cut",
        renamed(files | shards | {"model.safetensors.index.json": index}, **others),
    )
    folder = Path(str(fetch_names(tiny("model.path=hf:ada/cut")).training_recipe.model.path))
    assert {file.name for file in folder.glob("**/*.safetensors")} == set(shards)


def test_gated_model_error_does_not_contain_hub_token(
    hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.gated.add("models/ada/tiny")  # all others: tests/commands/bad_hub.py
    with pytest.raises(InputError, match="is gated; accept the terms") as caught:
        fetch_names(tiny())
    assert SECRET not in str(caught.value)


def test_export_uploads_a_private_model_only_to_the_named_repository(
    hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(train_recipe(tiny()))
    assert not [asked for asked in hub.asked if asked.startswith("POST")]
    assert main(["export", run, "hf:ada/mine"]) == 0
    assert f"{hub.url}/ada/mine" in capsys.readouterr().out
    [made] = hub.created
    assert (made["organization"], made["name"], made["visibility"]) == ("ada", "mine", "private")
    [sent] = hub.repositories["models/ada/mine"]
    assert sent == read_files(Path(run) / "final")
    hub.code = 403
    assert main(["export", run, "hf:ada/mine"]) == 2
    error = capsys.readouterr().err
    assert "hf:ada/mine was not uploaded (HfHubHTTPError); run hf auth login" in error
    assert SECRET not in error
    assert main(["export", run, "hf:mine"]) == 2
    assert "hf:mine is not a hub model; write hf:owner/name" in capsys.readouterr().err


def parquet(rows: list[dict[str, str]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def rows_of(name: str) -> list[Any]:
    """The rows of a data set by name, as a run opens them."""
    section = fetch_names(tiny(f"data.train={name}", "data.validation=null")).training_recipe.data
    rows = open_rows(group_files(str(section.train)))
    return rows.read_rows(range(len(rows)))


def test_data_set_is_named_by_configuration_and_split(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "main/train/0000.parquet": parquet(QUESTIONS[:4]),
        "main/train/0001.parquet": parquet(QUESTIONS[4:8]),
        "main/test/0000.parquet": parquet(QUESTIONS[8:9]),
    }
    hub.push("datasets/ada/sums", files, "refs/convert/parquet")
    for name in ("", "/train", "/main/train"):
        assert rows_of(f"hf:datasets/ada/sums{name}") == QUESTIONS[:8]
    assert not any("test/0000" in path for path in hub.asked)
    assert rows_of("hf:datasets/ada/sums/test") == QUESTIONS[8:9]
    hub.push("datasets/ada/sums", {**files, "b/train/0000.parquet": b""}, "refs/convert/parquet")
    with pytest.raises(InputError, match="with one of: b/train, main/test, main/train"):
        rows_of("hf:datasets/ada/sums")
    for offline in "01":
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        assert rows_of("hf:datasets/ada/sums/main/train") == QUESTIONS[:8]


def test_hub_name_parser_reads_revision_and_file_and_rejects_parent_path() -> None:
    assert parse_name_of_kind("hf:ada/tiny@v1.2", "model").revision == "v1.2"
    assert (
        parse_name_of_kind("hf:datasets/ada/sums@refs/convert/parquet/a/0.parquet", "dataset").file
        == "a/0.parquet"
    )
    assert (
        parse_name_of_kind("hf:datasets/ada/sums@main/a/train.jsonl", "dataset").revision == "main"
    )
    with pytest.raises(ValueError, match="is not a hub data set"):
        parse_name_of_kind("hf:datasets/ada/sums/a/../../b.jsonl", "dataset")
