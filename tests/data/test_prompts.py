"""Prompts: templates, tokens, over-long rows, and which row stands at which position."""

import json
from pathlib import Path
from typing import Any

import pytest
from row_files import write_rows
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.data.jsonl import DataError, JsonlIndex
from lockstep.data.prompts import PromptRows
from lockstep.data.templates import fill_template
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer
from lockstep.rewards.row_rules import NO_ANSWERS

ROWS = [
    {"question": f"What is {n} more than {n}?" + " Say." * (n % 3), "answer": str(2 * n)}
    for n in range(10)
]
CHAT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<reply>{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return words_tokenizer(
        [*(row["question"] for row in ROWS), "<user> What <system> Be brief.\n<reply>"]
    )


@pytest.fixture
def index(tmp_path: Path) -> JsonlIndex:
    return JsonlIndex(write_rows(tmp_path / "rows.jsonl", ROWS))


def section(**options: Any) -> DataSection:
    return DataSection(**{"train": "rows.jsonl", "max_prompt_tokens": 64, **options})


def test_render_fills_fields_and_leaves_everything_else() -> None:
    row = {"a": "{x}", "n": 7, "yes": True, "list": [1, "é"], "a.b": "dotted"}
    assert (
        fill_template("{{{a}}} {n}/{yes} {list} {a.b}\n", row, "")
        == '{{x}} 7/true [1, "é"] dotted\n'
    )
    assert fill_template("no fields", {}, "") == "no fields"


def test_prompt_has_rendered_text_its_tokens_row_and_line_id(
    index: JsonlIndex, tokenizer: Any
) -> None:
    prompt = PromptRows(index, tokenizer, section(prompt="{question}\n", answer="#### {answer}"))[3]
    assert prompt.id == "rows.jsonl:4"
    assert prompt.text == ROWS[3]["question"] + "\n"
    assert tokenizer.decode(prompt.tokens) == prompt.text
    assert prompt.row == ROWS[3]


def test_row_without_answer_is_rejected_only_if_answers_are_required(
    tmp_path: Path, tokenizer: Any
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "What?"}) + "\n" + json.dumps(ROWS[1]))
    prompts = PromptRows(JsonlIndex(path), tokenizer, section(), NO_ANSWERS)
    assert [prompts.answer(prompt) for prompt in prompts.read_first()] == ["", "2"]
    with pytest.raises(
        DataError, match=r"line 1: has no field 'answer', which data\.answer='\{answer\}' needs"
    ):
        PromptRows(JsonlIndex(path), tokenizer, section())


def test_chat_template_adds_system_prompt_and_generation_prompt(
    index: JsonlIndex, tokenizer: Any
) -> None:
    tokenizer.chat_template = CHAT
    prompt = PromptRows(index, tokenizer, section(chat=True, system_prompt="Be brief."))[1]
    assert prompt.text == f"<system> Be brief.\n<user> {ROWS[1]['question']}\n<reply>"
    assert tokenizer.decode(prompt.tokens) == prompt.text


THINKING = CHAT + (
    "{% if style and loud is not false %}{% generation %}<{{ style }}>{% endgeneration %}{% "
    "endif %}"
)


def test_template_args_are_passed_to_chat_template(index: JsonlIndex, tokenizer: Any) -> None:
    tokenizer.chat_template = THINKING
    plain = PromptRows(index, tokenizer, section(chat=True))[1].text
    assert (
        PromptRows(index, tokenizer, section(chat=True, template_args={"style": "What"}))[1].text
        == f"{plain}<What>"
    )
    quiet = section(chat=True, template_args={"style": "What", "loud": False})
    assert PromptRows(index, tokenizer, quiet)[1].text == plain


def test_arguments_that_a_chat_template_does_not_read_are_refused(
    index: JsonlIndex, tokenizer: Any
) -> None:
    tokenizer.chat_template = THINKING
    for name in ("enable_thinking", "messages", "bos_token"):
        with pytest.raises(
            ValueError,
            match=rf"data\.template_args has {name}, which .* not use; it uses loud, style",
        ):
            PromptRows(
                index, tokenizer, section(chat=True, template_args={"style": "x", name: True})
            )
    tokenizer.chat_template = CHAT
    with pytest.raises(ValueError, match="does not use; it takes no arguments"):
        PromptRows(index, tokenizer, section(chat=True, template_args={"style": "x"}))
    with pytest.raises(
        ValueError, match="template_args require a chat template; set chat: true, or messages"
    ):
        section(template_args={"style": "x"})


def test_bos_token_is_not_doubled_if_chat_template_writes_it(
    index: JsonlIndex, assets: Path
) -> None:
    llama = load_tokenizer(assets / "models/stories260K/hf")
    assert PromptRows(index, llama, section())[0].tokens[0] == llama.bos_token_id
    llama.chat_template = "{{ bos_token }}{{ messages[0].content }}"
    assert PromptRows(index, llama, section(chat=True))[0].tokens.count(llama.bos_token_id) == 1


def test_gsm8k_prompts_are_tokenized_or_skipped_as_overlong(assets: Path) -> None:
    data = section(
        prompt="Question: {question}\nAnswer:", max_prompt_tokens=300, overlong_prompts="skip"
    )
    tokenizer = load_tokenizer(assets / "models/stories260K/hf")
    prompts = PromptRows(JsonlIndex(assets / "data/gsm8k/test.jsonl"), tokenizer, data)
    assert len(prompts) + prompts.selection.overlong.count == 1319
    assert 0 < prompts.selection.overlong.count < 1319
    assert all(len(prompt.tokens) <= 300 for prompt in prompts.read_first())
    assert tokenizer.decode(list(prompts[0].tokens), skip_special_tokens=True) == prompts[0].text


TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 7?"}]


def talks(tmp_path: Path, *talks: Any) -> JsonlIndex:
    return JsonlIndex(write_rows(tmp_path / "talks.jsonl", ({"talk": talk} for talk in talks)))


def test_final_assistant_message_is_left_out_of_rendered_prompt(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.chat_template = CHAT
    answered = [*TALK, {"role": "assistant", "content": "A number."}]
    longer = [*answered, {"role": "user", "content": "Say."}]
    prompts = PromptRows(
        talks(tmp_path, TALK, answered, longer), tokenizer, section(messages="talk", answer="")
    ).read_first()
    asked = "<system> Be brief.\n<user> What is 7?\n"
    assert [prompt.text for prompt in prompts] == [
        f"{asked}<reply>", f"{asked}<reply>", f"{asked}<assistant> A number.\n<user> Say.\n<reply>",
    ]  # fmt: skip
    assert [prompt.messages for prompt in prompts] == [tuple(TALK), tuple(TALK), tuple(longer)]
    assert prompts[1].row == {"talk": answered}
