"""Digests of a finished run: each file that is altered afterwards, or by something else meanwhile, is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.config.model_recipe import weights_of
from lockstep.errors import InputError
from lockstep.report.log import METRICS
from lockstep.run.track import Logs
from lockstep.sums import SUMS, find_altered, require_unaltered, write_sums

FILES = ("final/model.safetensors", "final/config.json", "initial/tokenizer.json", "certificate.json", "metrics.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in FILES[:-1]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 100)
    (tmp_path / "recipe.yaml").touch()
    logs = Logs(tmp_path)
    logs.metrics(1, {"train/reward": 0.5})
    logs.samples(1, [{"response": "one"}])
    assert write_sums(tmp_path, logs.sums()) == []
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named(run: Path, name: str) -> None:
    require_unaltered(run)
    content = bytearray((run / name).read_bytes())
    content[7] ^= 4
    (run / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} differs from what the run wrote; put back"):
        require_unaltered(run)
    if name.startswith("final/"):
        with pytest.raises(InputError, match=f"{name} differs"):
            weights_of(run)
        with pytest.raises(InputError, match=f"{name} differs"):
            weights_of(run / "final")
    else:
        assert weights_of(run) == run / "final"


@pytest.mark.parametrize("name", FILES)
def test_what_is_missing_or_longer_is_named(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.write(b"more")
    assert " were written; put back" in next(find_altered(run, ""))
    (run / name).unlink()
    assert "is missing" in next(find_altered(run, ""))
    (run / SUMS).unlink()
    assert list(find_altered(run, "")) == []


def test_lines_that_a_reward_adds_or_changes_are_told_at_the_end(run: Path) -> None:
    logs = Logs(run)
    logs.rewind(1)
    with (run / METRICS).open("r+b") as file:
        file.seek(30)
        file.write(b"9")
    logs.metrics(2, {"train/reward": 0.6})
    (told,) = write_sums(run, logs.sums())
    assert "metrics.jsonl differs from what the run wrote" in told


def test_lines_that_a_resumed_run_cuts_are_forgotten(run: Path) -> None:
    logs = Logs(run)
    logs.rewind(0)
    logs.metrics(1, {"train/reward": 0.7})
    assert write_sums(run, logs.sums()) == []


def test_a_file_of_digests_that_holds_something_else_is_refused(run: Path) -> None:
    (run / SUMS).write_text("[1]", encoding="utf-8")
    with pytest.raises(InputError, match=r"sums.json is not as Lockstep writes it .*restore it, or remove"):
        require_unaltered(run)
