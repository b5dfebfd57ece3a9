"""The length of a run in epochs: its smaller last step, and the rows that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from killing import assert_same, copy_unfinished, final
from pairs_runs import of_steps, scored
from row_files import read_rows
from tiny_recipe import DPO
from training import train_rows

from lockstep.algorithms.job import RunLength
from lockstep.config.loading import load_recipe
from lockstep.run.dry_run.dry_run import dry_run

EPOCH = ("run.max_steps=-1", "optimizer.lr=1e-12", "data.shuffle=false")


def write(name: str, recipe: dict[str, Any]) -> None:
    Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))


def learn(name: str, *overrides: str) -> list[dict[str, Any]]:
    return train_rows(f"{name}.yaml", *overrides)


@pytest.mark.parametrize(
    ("rows", "size", "trains_rest", "counts"),
    [
        (7, 4, True, [4, 3]),
        (7, 4, False, [4]),
        (127, 64, True, [64, 63]),
        (14, 4, True, [4, 4, 4, 2]),
        (8, 4, True, [4, 4]),
        (8, 4, False, [4, 4]),
        (9, 4, True, [4, 4, 1]),
    ],
)
def test_epoch_trains_every_row_or_reports_the_remainder(
    rows: int, size: int, trains_rest: bool, counts: list[int]
) -> None:
    length = RunLength(99, rows, size, trains_rest)
    taken, position = list[int](), 0
    while not length.is_over(len(taken), position):
        taken.append(length.count_rows(position))
        position += taken[-1]
    assert taken == counts
    assert rows - position == (0 if trains_rest else length.rest_row_count)
    assert (length.describe_rest() is None) == (length.rest_row_count == 0)


def test_last_step_trains_epoch_remainder_and_resumes_bit_identically(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("dpo", DPO)
    options = (*scored(in_tmp, 7), *EPOCH, "dpo.global_batch_size=4", "dpo.preference_loss=rpo_sq")
    told = dry_run(load_recipe("dpo.yaml", list(options)))
    assert "steps: 2;" in told
    assert "note: the last 3 of 7 rows make a smaller last step, since a step takes 4" in told
    whole = learn("dpo", *options, "run.folder=whole")
    assert "\nnote: the last 3 of 7 rows make a smaller last step" in capsys.readouterr().err
    aims = [(1 + n % 3 - 0.5) ** 2 for n in range(7)]
    assert of_steps(whole) == pytest.approx([sum(aims[:4]) / 4, sum(aims[4:]) / 3], rel=1e-4)
    shown = [row["id"] for row in read_rows("whole/samples.jsonl")]
    assert shown == [f"pairs.jsonl:{n}" for n in range(1, 8)]
    copy_unfinished(2)
    assert learn("dpo", *options, "run.folder=stopped") == whole
    assert_same(final("whole"), final("stopped"))
