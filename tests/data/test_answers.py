"""What is learned of an answer: what the chat template writes of it after its prompt, up to one
stop token.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from row_files import write_rows
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lockstep.config import DataSection
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.jsonl import JsonlIndex
from lockstep.data.pair_options import PairSection
from lockstep.data.pairs import PairRows
from lockstep.data.prompts import PromptRows
from lockstep.data.rows import DataError
from lockstep.data.template_date import keep_date
from lockstep.models.tokenizer import load_tokenizer

END, TEXT_END = "<|im_end|>", "<|endoftext|>"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + OPEN
)
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set parts = m.content.split('</think>') %}{% set thought = m.reasoning_content or '' %}"
    "{% if not thought and parts|length > 1 %}{% set thought = parts[0].replace('<think>', "
    "'').strip() %}{% endif %}"
    "<think>\n{{ thought }}\n</think>\n\n{{ parts[-1].lstrip() }}{% else %}{{ m.content }}{% "
    "endif %}<|im_end|>\n"
    "{% endfor %}"
) + OPEN
OPENS_A_THOUGHT = THINKS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
DROPS_THOUGHTS = (
    "{% for m in messages %}{% if m.role == 'user' %}[U]{{ m.content }}{% else %}[A]"
    "{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[A]<think>\n{% endif %}"
)
CALLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in "
    "messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] "
    "%}{{ '\n<tool_call>\n' }}{{ c.function.name }} {{ c.function.arguments | tojson "
    "}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
) + OPEN
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role "
    "== 'assistant' %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
INST_SYSTEM = INST.replace(
    "[INST] {{", "[INST] {% if loop.last %}{{ messages[0].content }}\n\n{% endif %}{{", 1
)
TWO_ENDS = CHATML.replace("{% endif %}", "{% else %}<|endoftext|>{% endif %}")
TRIMS = CHATML.replace("{{ m.content }}", "{{ m.content | trim }}")

CALL = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
SCHEMA = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
WRITTEN = '\n<tool_call>\nadd {"a": 2}\n</tool_call><|im_end|>'


def build_tokenizer(
    template: str | None, *, end: str = END, bos: str | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, with the marks of conversations as tokens."""
    letters = {
        letter: token for token, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    whole = Tokenizer(models.BPE(letters, []))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>", END, TEXT_END]
    made = PreTrainedTokenizerFast(
        tokenizer_object=whole, eos_token=end, bos_token=bos, additional_special_tokens=marks
    )
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = template
    return made


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def write(folder: Path, *rows: dict[str, Any]) -> JsonlIndex:
    return JsonlIndex(write_rows(folder / "rows.jsonl", rows))


def open_rows(
    folder: Path, tokenizer: Any, row: dict[str, Any], stops: tuple[str, ...] = (), **options: Any
) -> DemonstrationRows:
    fields = {"train": "rows.jsonl", "max_prompt_tokens": 999, "shuffle": False, **options}
    data = DataSection.model_validate(fields)
    return DemonstrationRows(
        write(folder, row), tokenizer, data, 999, tokenizer.convert_tokens_to_ids(list(stops))
    )


def learn(
    folder: Path, template: str, *talk: dict[str, Any], end: str = END, stops: tuple[str, ...] = ()
) -> str:
    """What is learned of the last message of a conversation, as text."""
    tokenizer = build_tokenizer(template, end=end)
    [row] = open_rows(folder, tokenizer, {"talk": talk}, stops, messages="talk").read_first()
    whole = tokenizer.apply_chat_template(
        list(talk[:-1]), tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(list(row.prompt.tokens)) == whole
    return str(tokenizer.decode(list(row.answers[0])))


@pytest.mark.parametrize(
    ("template", "answer", "learned"),
    [
        (THINKS, assistant("4", reasoning_content="two"), "<think>\ntwo\n</think>\n\n4<|im_end|>"),
        (THINKS, assistant("<think>\ntwo\n</think>\n\n4"), "<think>\ntwo\n</think>\n\n4<|im_end|>"),
        (OPENS_A_THOUGHT, assistant("4", reasoning_content="two"), "two\n</think>\n\n4<|im_end|>"),
        (OPENS_A_THOUGHT, assistant("<think>\ntwo\n</think>\n\n4"), "two\n</think>\n\n4<|im_end|>"),
        (DROPS_THOUGHTS, assistant("<think>\ntwo\n</think>\n\n4"), "two\n</think>\n\n4<|im_end|>"),
        (CALLS, assistant("I add.", tool_calls=CALL), "I add." + WRITTEN),
        (CALLS, assistant(None, tool_calls=CALL), WRITTEN),
        (CALLS, {"role": "assistant", "tool_calls": CALL}, WRITTEN),
        (
            CALLS.replace("m.content or ''", "m.content + ''"),
            assistant(None, tool_calls=CALL),
            WRITTEN,
        ),
        (INST, assistant("  4\n"), " 4<|im_end|>"),
        (TRIMS, assistant("4\n"), "4<|im_end|>"),
        (TWO_ENDS, assistant("4"), "4<|im_end|>"),
        (CHATML, assistant("4<|im_end|>\n<|im_end|>\n"), "4<|im_end|>"),
        (CHATML, assistant("4", weight=1), "4<|im_end|>"),
    ],
)
def test_text_rendered_after_prompt_is_learned_up_to_one_stop_token(
    tmp_path: Path, template: str, answer: dict[str, Any], learned: str
) -> None:
    assert learn(tmp_path, template, user("2+2?"), answer, stops=(TEXT_END,)) == learned


def test_earlier_tool_call_turn_with_null_content_is_rendered(tmp_path: Path) -> None:
    talk = [
        user("2+2?"),
        assistant(None, tool_calls=CALL),
        {"role": "tool", "content": "4"},
        assistant("It is 4."),
    ]
    assert learn(tmp_path, CALLS, *talk) == "It is 4.<|im_end|>"


def test_answer_is_learned_if_chat_template_adds_system_message_to_last_question(
    tmp_path: Path,
) -> None:
    """Mistral's writes the system message into the last question, and not if an answer follows
    it.
    """
    talk = [{"role": "system", "content": "Be brief."}, user("2+2?"), assistant("4")]
    assert learn(tmp_path, INST_SYSTEM, *talk) == " 4<|im_end|>"


def test_an_answer_of_a_template_that_writes_no_stop_token_ends_with_the_end_of_sequence(
    tmp_path: Path,
) -> None:
    assert learn(tmp_path, CHATML, user("2+2?"), assistant("4"), end=TEXT_END) == "4<|endoftext|>"


@pytest.mark.parametrize(
    ("template", "answer", "message"),
    [
        (
            CHATML,
            assistant("4", tool_calls=CALL),
            "has tool_calls in its answer, which the tokenizer's chat template",
        ),
        (
            CHATML,
            assistant("4", weight=0),
            ("has weight 0 on its answer, so nothing is learned from it"),
        ),
        (CHATML, assistant("4", weight=0.5), r"has the weight 0\.5 on its answer"),
        (
            CHATML,
            assistant("4<|im_end|>\nMore<|im_end|>"),
            r"has <\|im_end\|>, a stop token of the model, inside its answer",
        ),
        (DROPS_THOUGHTS, assistant("4"), "renders the prompt differently once it has an answer"),
        (CHATML, assistant(None, reasoning_content="two"), "message, number 2, that is not"),
    ],
)
def test_unlearnable_answer_is_rejected_with_line_and_reason(
    tmp_path: Path, template: str, answer: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"line 1: .*{message}"):
        learn(tmp_path, template, user("2+2?"), answer)


def test_reasoning_content_omitted_by_chat_template_is_reported(
    tmp_path: Path, capsys: Any
) -> None:
    assert (
        learn(tmp_path, CHATML, user("2+2?"), assistant("4", reasoning_content="two", id=None))
        == "4<|im_end|>"
    )
    assert (
        "omitted fields and how many of the first rows have them: reasoning_content (1)"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA])])
def test_tools_of_a_row_are_given_to_the_template(tmp_path: Path, tools: Any) -> None:
    row = {"talk": [user("2+2?"), assistant("4")], "tools": tools}
    rows = open_rows(tmp_path, build_tokenizer(CALLS), row, messages="talk")
    data = DataSection(train="rows.jsonl", messages="talk", max_prompt_tokens=999, answer="")
    prompts = PromptRows(rows.selection.rows, build_tokenizer(CALLS), data)
    assert rows[0].prompt == prompts[0]
    assert f"system\n{json.dumps([SCHEMA])}<|im_end|>" in prompts[0].text


@pytest.mark.parametrize(
    ("answer", "learned"), [("x<|im_end|>", "x<|im_end|>"), ("x", "x<|endoftext|>")]
)
def test_answer_that_ends_with_stop_token_gets_no_second_stop_token(
    tmp_path: Path, answer: str, learned: str
) -> None:
    tokenizer = build_tokenizer(None, end=TEXT_END)
    row = open_rows(tmp_path, tokenizer, {"question": "q", "answer": answer}, (END,))[0]
    assert tokenizer.decode(list(row.answers[0])) == learned


def test_pair_answers_include_their_reasoning_content(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(THINKS)
    answers = {name: [assistant("4", reasoning_content=name)] for name in ("chosen", "rejected")}
    rows = write(tmp_path, {"talk": [user("2+2?")], **answers})
    data = PairSection(train="rows.jsonl", messages="talk", max_prompt_tokens=999, shuffle=False)
    pair = PairRows(rows, tokenizer, data, 999)[0]
    texts = [tokenizer.decode(list(answer)) for answer in pair.answers]
    assert texts == [f"<think>\n{name}\n</think>\n\n4<|im_end|>" for name in answers]


@pytest.mark.parametrize("question", ["<s>2+2?", "2+2?"])
def test_prompt_starts_with_exactly_one_bos_token(
    question: str, assets: Path, tmp_path: Path
) -> None:
    llama = load_tokenizer(assets / "models/stories260K/hf")
    data = DataSection(train="rows.jsonl", prompt="{question}", max_prompt_tokens=99, answer="")
    tokens = PromptRows(write(tmp_path, {"question": question}), llama, data)[0].tokens
    assert tokens.count(llama.bos_token_id or 0) == 1
    assert tokens[0] == llama.bos_token_id


def open_prompts(folder: Path, tokenizer: Any, **options: Any) -> PromptRows:
    data = DataSection(train="rows.jsonl", max_prompt_tokens=9999, answer="", **options)
    return PromptRows(write(folder, {"question": "2+2?"}), tokenizer, data)


DATED = CHATML + "{{ strftime_now('%d %b %Y %H:%M') }}"


def test_run_folder_keeps_date_used_by_chat_template(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with keep_date(run):
        today = open_prompts(tmp_path, build_tokenizer(DATED), chat=True)[0].text
    kept = (run / "template_date.txt").read_text()
    assert date.fromisoformat(kept.strip()).strftime("%d %b %Y 00:00") in today
    (run / "template_date.txt").write_text("2024-07-26\n")
    with keep_date(run):
        assert (
            "26 Jul 2024 00:00" in open_prompts(tmp_path, build_tokenizer(DATED), chat=True)[0].text
        )
