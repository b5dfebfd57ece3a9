"""Rows in TRL's dataset formats: which options their columns stand for, through the starter recipes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chat_rows import CHAT, ask, say
from row_files import write_rows
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from lockstep.algorithms.rows import data_files, open_pairs, open_prompts
from lockstep.cli import main
from lockstep.config.loading import load_recipe, load_run
from lockstep.config.sources import DataSection
from lockstep.core.errors import InputError
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.files import FileGroup
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.pair_options import PairSection
from lockstep.data.prompts import PromptRows
from lockstep.data.rows import DataError
from lockstep.models.source import open_source
from lockstep.models.tokenizer import words_tokenizer
from lockstep.rewards.row_rules import NO_ANSWERS
from lockstep.run.dry_run.dry_run import dry_run
from lockstep.run.train import train_recipe

REWARD = "def brief(prompt, response, answer, row):\n    return -len(response)\n"


@pytest.fixture
def model(assets: Path, in_tmp: Path) -> str:
    shutil.copytree(assets / "models/stories260K/hf", "model")
    (in_tmp / "model/chat_template.jinja").write_text(CHAT)
    (in_tmp / "brief.py").write_text(REWARD)
    return "model"


BRIEF = "reward.function=brief.py:brief"
TEXTS = {"prompt": "Once", "completion": " upon"}
TALKS = {"prompt": [ask("Once")], "completion": [say("upon")]}
PAIR = {"chosen": " upon a time", "rejected": " more"}
FORMATS: dict[str, tuple[str, dict[str, Any], str]] = {
    "completion": ("sft", TEXTS, "data.prompt=prompt data.completion=completion"),
    "talk completion": ("sft", TALKS, "data.messages=prompt data.completion=completion"),
    "asked in a talk": (
        "sft",
        {"prompt": "Once", "completion": [say("upon")]},
        "data.prompt=prompt data.chat=True data.completion=completion",
    ),
    "messages": ("sft", {"messages": [ask("Once"), say("upon")]}, "data.messages=messages"),
    "prompt and messages": (
        "sft",
        {"prompt": "Once", "messages": [ask("Once"), say("upon")]},
        "data.messages=messages",
    ),
    "question": ("sft", {"question": "Once", "answer": "upon"}, ""),
    "question and completion": (
        "sft",
        {"question": "Once", "answer": "upon", "completion": "more"},
        "",
    ),
    "text": ("sft", {"text": "Once upon a time"}, "data.prompt=null data.completion=text"),
    "label": ("kto", TEXTS, "data.prompt=prompt data.completion=completion"),
    "talk label": ("kto", TALKS, "data.messages=prompt data.completion=completion"),
    "pair": ("dpo", {"prompt": "Once"} | PAIR, "data.prompt=prompt"),
    "implicit pair": (
        "dpo",
        {"chosen": "Once upon a", "rejected": "Once more"},
        "data.prompt=null",
    ),
    "talk pair": (
        "dpo",
        {"prompt": [ask("Once")], "chosen": [say("upon")], "rejected": [say("more")]},
        "data.messages=prompt",
    ),
    "implicit talk pair": (
        "reward_model",
        {
            "prompt": "Once",
            "chosen": [ask("Once"), say("upon")],
            "rejected": [ask("Once"), say("more")],
        },
        "data.messages=chosen",
    ),
    "prompt": ("grpo", {"prompt": "Once"}, "data.prompt=prompt data.answer=null"),
    "prompt and question": (
        "grpo",
        {"question": "Once", "answer": "4", "prompt": [ask("Once")]},
        "data.messages=prompt",
    ),
    "verl": (
        "grpo",
        {"prompt": [ask("Once")], "reward_model": {"ground_truth": "4"}},
        "data.messages=prompt data.answer=reward_model.ground_truth",
    ),
}


def short(recipe: str, model: str, *options: str) -> list[str]:
    return [
        f"model.path={model}",
        "data.train=rows.jsonl",
        "run.max_steps=1",
        "run.folder=run",
        *((BRIEF,) if recipe == "grpo" else ()),
        *options,
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_starter_takes_trl_format_and_says_so_in_one_line(
    name: str, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, row, options = FORMATS[name]
    write_rows("rows.jsonl", [row | {"label": n % 2 == 0, "id": n} for n in range(64)])
    dry_run(load_recipe(recipe, short(recipe, model)))
    lines = [line for line in capfd.readouterr().err.splitlines() if "columns" in line]
    assert lines == (
        [f"note: data: columns {', '.join([*row, 'label', 'id'])} → {options}"] if options else []
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Once"}, "data.prompt=prompt"),
        ({"messages": [ask("Once"), say("upon")], "solution": "4"}, "data.messages=messages"),
        ({"question": "Once"}, ""),
    ],
)
def test_generate_and_eval_read_columns_of_rows_for_a_plain_folder(
    row: dict[str, Any], said: str, model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write_rows("rows.jsonl", [row | {"answer": "4"}] * 2)
    fast = ["learner.device=cpu", "learner.dtype=fp32", "data.max_prompt_tokens=200"]
    assert main(["generate", model, "rows.jsonl", *fast, "sampling.max_tokens=2"]) == 0
    fast += ["greedy.max_tokens=2", "sampling=null", "reward.marker=null"]
    assert main(["eval", model, "rows.jsonl", *fast]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "columns" in line]
    assert len(lines) == (2 if said else 0)
    assert all(f"→ {said}" in line for line in lines)
    [folder] = Path("evals").iterdir()
    [answered, *_] = (folder / "samples.jsonl").read_text().splitlines()
    asked = "[user]Once</s>[assistant]" if "messages" in row else "Once\nReason step by step"
    assert json.loads(answered)["prompt"].startswith(asked)


def test_told_columns_train_resume_and_carry_over_to_eval(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "Twice", "answer": "4", "prompt": [ask("Once")]}
    write_rows("rows.jsonl", [row] * 8)
    fast = ["sampling.max_tokens=2", "validation_sampling.max_tokens=2", "learner.device=cpu"]
    options = short(
        "grpo", model, *fast, "grpo.num_prompts_per_step=2", "grpo.global_batch_size=16"
    )
    loaded = load_recipe("grpo", options)
    train_recipe(loaded)
    logged = [json.loads(line) for line in Path("run/samples.jsonl").read_text().splitlines()]
    assert logged[0]["prompt"] == "[user]Once</s>[assistant]"
    assert load_run(Path("run")).dump_options() == loaded.dump_options()
    assert load_run(Path("run")).training_recipe.data.messages == "prompt"
    assert main(["train", "grpo", *options]) == 0
    assert "is finished" in capsys.readouterr().out
    assert main(["eval", "run", "rows.jsonl", "--out", "eval", "learner.device=cpu"]) == 0
    [answered, *_] = Path("eval/samples.jsonl").read_text().splitlines()
    assert json.loads(answered)["prompt"] == "[user]Once</s>[assistant]"
    explicit = ["data.messages=null", "data.prompt=question", "--allow-changes", "run.max_steps=2"]
    assert main(["train", "grpo", *options, *explicit]) == 0
    assert load_run(Path("run")).training_recipe.data.messages is None


def test_text_without_bos_is_learned_after_its_first_token(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "Once upon a time"}])
    words = words_tokenizer(["Once upon a time"])
    data = DataSection(train="x", prompt="", completion="text", max_prompt_tokens=8)
    [row] = DemonstrationRows(JsonlIndex(path), words, data, 64).read_first()
    assert words.decode(list(row.prompt.tokens)) == "Once"
    assert words.decode(list(row.answers[0])) == " upon a time<eos>"
    with pytest.raises(DataError, match="line 1: its prompt is empty"):
        PromptRows(JsonlIndex(path), words, data, NO_ANSWERS).read_first()


def test_prompt_of_implicit_pair_is_cut_before_a_word(assets: Path, tmp_path: Path) -> None:
    texts = {"chosen": "Human: Hi\n\nAssistant: Yellow", "rejected": "Human: Hi\n\nAssistant: Yes"}
    path = write_rows(tmp_path / "pairs.jsonl", [texts])
    data = PairSection(train="x", prompt="", max_prompt_tokens=64)
    source = open_source(assets / "models/stories260K/hf")
    pairs = open_pairs(FileGroup((path,)), data, source, 256, "dpo.max_tokens")
    assert pairs[0].prompt.text == "Human: Hi\n\nAssistant:"
    [shown] = pairs.render_pairs(0, 1, 0)
    assert (shown["chosen"].strip(), shown["rejected"].strip()) == ("Yellow", "Yes")


def test_share_of_implicit_pairs_is_held_out(assets: Path, tmp_path: Path) -> None:
    rows = [{"chosen": f"Ask {i}: Yes", "rejected": f"Ask {i}: No"} for i in range(8)]
    path = write_rows(tmp_path / "pairs.jsonl", rows)
    data = PairSection(train=str(path), validation=0.25, prompt="", max_prompt_tokens=64)
    files = data_files(data, tmp_path)
    source = open_source(assets / "models/stories260K/hf")
    assert files.validation is not None
    sizes = [
        len(open_pairs(part, data, source, 256, "dpo.max_tokens"))
        for part in (files.train, files.validation)
    ]
    assert sizes == [6, 2]


def test_pair_of_conversations_with_different_prompts_is_refused(model: str) -> None:
    row = {"chosen": [ask("Once"), say("upon")], "rejected": [ask("Twice"), say("more")]}
    write_rows("rows.jsonl", [row] * 8)
    with pytest.raises(InputError, match="different messages before the last in 'chosen' and"):
        dry_run(load_recipe("dpo", short("dpo", model)))


@pytest.mark.parametrize("written", ["data.prompt=other", "data.prompt={other}"])
def test_option_named_by_an_error_is_taken_without_quotes(model: str, written: str) -> None:
    write_rows("rows.jsonl", [{"other": "Once", "more": "4"}] * 64)
    with pytest.raises(InputError) as caught:
        dry_run(load_recipe("grpo", short("grpo", model)))
    assert "its fields are other, more; set data.prompt=FIELD to one of them" in str(caught.value)
    loaded = load_recipe("grpo", short("grpo", model, written))
    assert loaded.training_recipe.data.prompt == "{other}"
    assert "can start" in dry_run(loaded)


def test_math_reward_still_needs_an_answer(model: str) -> None:
    write_rows("rows.jsonl", [{"prompt": "Once"}] * 64)
    options = [one for one in short("grpo", model) if one != BRIEF]
    with pytest.raises(InputError, match="no field 'answer', which data"):
        dry_run(load_recipe("grpo", options))


def test_share_of_rows_is_held_out_with_equal_prompts_together(tmp_path: Path) -> None:
    rows = [{"question": str(n % 20), "answer": "4", "n": n} for n in range(60)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    section = DataSection(train=str(path), validation=0.25, max_prompt_tokens=8)
    files = data_files(section, tmp_path)
    words = words_tokenizer([str(n) for n in range(20)])
    assert files.validation is not None
    opened = [open_prompts(one, section, words) for one in (files.train, files.validation)]
    train, held_out = ({prompt.row["n"] for prompt in one.read_first()} for one in opened)
    assert (len(train), len(held_out)) == (45, 15)
    assert train | held_out == set(range(60))
    assert not {n % 20 for n in train} & {n % 20 for n in held_out}
    with pytest.raises(ValueError, match="less than 1"):
        DataSection(train="x", validation=1.5, max_prompt_tokens=8)


def test_tokenizer_without_tokens_is_named_instead_of_the_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"question": "Once"}])
    silent = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()))
    with pytest.raises(
        DataError, match=r"the tokenizer in .* turns its prompt 'Once' into no tokens"
    ):
        PromptRows(
            JsonlIndex(path), silent, DataSection(train="x", max_prompt_tokens=8), NO_ANSWERS
        )


def test_eval_reports_a_missing_file_before_a_short_context(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", model, "missing.jsonl"]) == 2
    assert "missing.jsonl: no such file" in capsys.readouterr().err


def test_length_of_validation_responses_is_free_without_validation(model: str) -> None:
    write_rows("rows.jsonl", [{"prompt": "Once"}] * 64)
    too_long = "validation_sampling.max_tokens=4096"
    assert "can start" in dry_run(load_recipe("grpo", short("grpo", model, too_long)))
    with pytest.raises(InputError, match=r"validation_sampling\.max_tokens"):
        dry_run(load_recipe("grpo", short("grpo", model, too_long, "data.validation=rows.jsonl")))


def test_share_of_training_rows_is_not_called_memorization(model: str) -> None:
    write_rows("rows.jsonl", [{"prompt": str(n), "completion": "upon"} for n in range(64)])
    shown = dry_run(load_recipe("sft", short("sft", model, "data.validation=0.25")))
    assert "48 rows (none skipped) for training, 16 rows (none skipped) for validation" in shown
    assert "memorization" not in shown
