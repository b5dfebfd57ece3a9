"""A converted recipe reads its rows as they are, by the first of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.config.foreign_recipe import convert_file, validate
from lockstep.data.foreign_rows import fit_to_rows
from lockstep.foreign.words import Json

ASK = [{"role": "user", "content": "2 + 2?"}]
REPLY = [{"role": "assistant", "content": "4"}]
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files={} actor_rollout_ref.rollout.n=4"
TRL = "python {name}.py --dataset_name {{}}"
GROUPS = f"{TRL.format(name='grpo')} --reward_funcs accuracy_reward"
OPTIONS = ("data.prompt", "data.messages", "data.chat", "data.completion", "data.answer")


@pytest.mark.parametrize(
    ("command", "row", "expected"),
    [
        (TRL.format(name="kto"), {"prompt": ASK, "completion": REPLY, "label": True},
         [None, "prompt", None, "{completion}", None]),
        (TRL.format(name="kto"), {"prompt": "2?", "completion": "4", "label": True},
         ["{prompt}", None, None, "{completion}", None]),
        (TRL.format(name="sft"), {"messages": [*ASK, *REPLY]}, [None, "messages", None, None, None]),
        (TRL.format(name="dpo"), {"chosen": [*ASK, *REPLY], "rejected": [*ASK, *REPLY]},
         [None, "chosen", None, None, None]),
        (GROUPS, {"prompt": ASK, "solution": "4"}, [None, "prompt", None, None, "{solution}"]),
        (GROUPS, {"prompt": "2?", "answer": "4"}, ["{prompt}", None, None, None, "{answer}"]),
        (VERL, {"prompt": ASK, "reward_model": {"ground_truth": "4"}},
         [None, "prompt", None, None, "{reward_model.ground_truth}"]),
        (VERL, {"prompt": "2?", "answer": "4"}, ["{prompt}", None, True, None, "{answer}"]),
    ],
)  # fmt: skip
def test_rows_say_how_they_are_read(command: str, row: dict[str, Json], expected: list[Json], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "run.sh").write_text(command.format(tmp_path / "rows.jsonl"))
    converted = fit_to_rows(convert_file(tmp_path / "run.sh"))
    validate(converted)
    assert [converted.options.get(key) for key in OPTIONS] == expected


def test_a_folder_of_splits_gets_the_one_they_train_on(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/dataset_dict.json").write_text("{}")
    (tmp_path / "run.sh").write_text(TRL.format(name="sft").format(tmp_path / "rows"))
    converted = fit_to_rows(convert_file(tmp_path / "run.sh"))
    assert converted.options["data.train"] == f"{tmp_path}/rows/train"
    assert "the rows were not looked at" in converted.remarks[-1]
