"""Every parser of others' text takes time in proportion to its length.

A line of `PARSERS` is a parser and texts that a stranger could send to slow it down, each of a
given length. Who writes another parser adds a line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest

from lockstep.data import jsonl, templates
from lockstep.data.thoughts import drop_thought
from lockstep.environments.calculator import Calculator
from lockstep.environments.tools import parse_calls
from lockstep.judge.templates import COMMON_CONTROLS, JudgeTemplate, build_escape
from lockstep.judge.verdicts import ScoreParser, WinnerParser
from lockstep.rewards.code_reward import extract_code_block
from lockstep.rewards.instruction_reward import READER, AnyInstruction
from lockstep.system.printable import make_printable

Parse = Callable[[str], object]
Text = Callable[[int], str]

SPACE = "\n "

SCORE, WINNER = ScoreParser(0, 5, "score", False), WinnerParser("winner")
CALL = '<tool_call>{"name": "a", "arguments": {"b": 1}}</tool_call>'


def repeat(text: str, before: str = "", after: str = "") -> Text:
    """The text of a length that repeats a text."""
    return lambda length: before + text * (length // len(text)) + after


def follows(kind: str, **arguments: Any) -> Parse:
    """The check of an instruction."""
    return READER.validate_python({"id": kind, **arguments}).is_followed


def distinct_keys(length: int) -> str:
    """An object of many keys, the last of them twice."""
    keys = [f'"{number}": 0' for number in range(length // 8)]
    return f"{{{', '.join([*keys, keys[-1]])}}}"


def parse_row(text: str) -> object:
    try:
        return jsonl.parse_row(text.encode())
    except ValueError:
        return None


def fill_template(text: str) -> object:
    return JudgeTemplate("Judge {response}.", ("response",), "judge.template").fill_case(
        {"response": text}
    )


def render_row(text: str) -> object:
    return templates.fill_template(
        "{question} {answer}", {"question": text, "answer": [text]}, "row 1"
    )


SCORES = (
    *(repeat(space, "Score: 4") for space in SPACE),
    *(repeat(space, "Score: 4", "x") for space in SPACE),
    *(repeat(space, "Score: 4 (", "out of") for space in SPACE),
    *(repeat(space, "Score: 4 out of") for space in SPACE),
    *(repeat(space, "Score:", "4") for space in SPACE),
    *(repeat(space, "Score:") for space in SPACE),
    *(repeat(text, "Score: 4 ") for text in ("*", "- ", "(", "wait ", "or ", "out of ", ".")),
    *(repeat(text, "Score: 4, wait") for text in (" ", ". ", "and ", "1")),
    *(repeat(text, "Score: ") for text in ("*", "$", "boxed ", "1", ".", "0.1")),
    *(repeat(text) for text in ("4", "\n", "4\n", "score (", "score" + "*" * 4, "<think>")),
)
WINNERS = (
    *(repeat(space, "Winner: A") for space in SPACE),
    *(repeat(space, "Winner: A", "x") for space in SPACE),
    *(repeat(space, "Winner: A is") for space in SPACE),
    *(repeat(space, "Winner: Response") for space in SPACE),
    *(repeat(text, "Winner: A") for text in ("*", " - ", " is x", " because", " (", " or")),
    *(repeat(text, "Winner: A, wait") for text in (" ", ".", " and", " B ", "maybe ")),
)
CALLS = (
    *(
        repeat(text)
        for text in (
            "<tool_call>",
            "</tool_call>",
            "<tool_call>{}",
            CALL,
            f"{CALL} ",
            "<tool_call>{</tool_call>",
        )
    ),
    *(repeat(text, "<tool_call>") for text in ("{", "[", " ", '{"a":', "</tool_call>")),
    *(repeat(text, "<tool_call>{}", "</tool_call>") for text in (" ", "<tool_call>{}")),
    *(
        repeat(text, '<tool_call>{"name": "', '"}</tool_call>')
        for text in ("<tool_call>", "</tool_call>", "\\\\")
    ),
    *(repeat(text) for text in ("<think>", "</think>", "<think></think>")),
)
JSON = tuple(repeat(text, "{") for text in ("}{", "}; {", "} ", "};", "[", " ", '"a":{'))
LLAMA_CALLS = (repeat('{"name": "a", "parameters": {}}; '),)
LINES = (
    *(
        "```a\n",
        "```\n",
        "~~~\n```\n",
        "`",
        "``` ",
        "> ",
        "> ```\n",
        "- ",
        "1. ",
        " ",
        "\n",
        "- ```python\n",
    ),
    *("  ```python\n  x\n", "    ```\n", ">```\n> x\n", "```{"),
)
CODE = (
    *map(repeat, LINES),
    *(
        repeat("> x\n", "> " * 500 + "```\n"),
        repeat("  x\n", "  ```\n"),
        repeat(" ", "```\n", "```x"),
    ),
)
THOUGHTS = tuple(
    repeat(text)
    for text in (
        *(
            "<think>",
            "</think>",
            "<think></think>",
            '"</think>"',
            '"</think>',
            "</thinking>",
            "<think></think> \n",
        ),
        *("<|channel|>", "[THINK]", " ", "<think>[THINK]", "`", "<"),
    )
)
WORDS = (
    *(
        " ",
        "\n",
        "a",
        "a ",
        "a-",
        "\n ",
        "\n\n",
        ".",
        ". ",
        "? ",
        '."',
        "-",
        "- ",
        "*",
        "*a",
        "**a",
        "#",
        "# ",
        "[",
    ),
    *("[a", "[]", "<<", "<<a", "\n<<", "P.S.", "1", "'", "{"),
)
PROSE = (
    *map(repeat, WORDS),
    *(
        repeat(".", "", "x"),
        repeat("a", "<<"),
        repeat("<a", "<<"),
        repeat(" ", "```\n", "x"),
        repeat("\n```", "```"),
    ),
    repeat(" ", "P.S.", "x\nP.S."),
)
KINDS_ASKED: dict[str, dict[str, Any]] = {
    **{name: {"at_most": 1} for name in ("words", "sentences", "paragraphs", "bullets")},
    "keywords": {"words": ["a", "a a", ". "], "at_most": 10**9},
    "starts_with": {"text": "a"},
    "ends_with": {"text": "b"},
    "one_of": {"texts": ["a", "b"]},
    **{name: {} for name in ("uppercase", "lowercase", "no_commas", "json")},
}
ROWS = (
    distinct_keys,
    *(repeat(text) for text in ("[", "{", '{"a":', " ", "1", "\\ud800")),
    *(repeat(text, '{"a": "', '"}') for text in ("\\ud83d\\ude00", "\\\\", " ")),
    *(repeat(text, '{"a": [', "0]}") for text in ("0,", "[],", '{"b": 1},', "1.5,")),
    repeat("[", '{"a": "', '"}'),
)
MARKED = tuple(
    repeat(text)
    for text in (
        "<s>",
        "<|im_start|>",
        "<|im_",
        "<",
        "<<s>s>",
        "[INST]",
        "<|",
        "< s>",
        "{",
        "{}",
        "{a}",
    )
)
CALCULATIONS = tuple(repeat(text) for text in ("1", "1+", "(", " ", ".", "=", "1=", "- ", "-"))

ANNOUNCEMENTS = tuple(
    repeat(text)
    for text in (
        "score: ",
        '"score: 4" ',
        "score: 4\n",
        "> score: 4\n",
        "“score: ",
        "‘winner: ",
        "winner: A\n",
    )
)

PARSERS: dict[str, tuple[Parse, tuple[Text, ...], int]] = {
    "score": (SCORE, SCORES, 4_000),
    "scores": (SCORE, ANNOUNCEMENTS, 32_000),
    "reply without score": (SCORE.without_score, SCORES, 4_000),
    "winner": (WINNER, WINNERS, 4_000),
    "winners": (WINNER, ANNOUNCEMENTS, 32_000),
    "hermes calls": (lambda text: parse_calls(text, "hermes"), CALLS, 16_000),
    "llama calls": (lambda text: parse_calls(text, "llama3_json"), LLAMA_CALLS, 256_000),
    "llama JSON": (lambda text: parse_calls(text, "llama3_json"), JSON, 16_000),
    "code blocks": (extract_code_block, CODE, 16_000),
    "thoughts": (drop_thought, THOUGHTS, 16_000),
    **{
        f"instruction {kind}": (follows(kind, **asked), PROSE, 8_000)
        for kind, asked in KINDS_ASKED.items()
    },
    "rows": (parse_row, ROWS, 16_000),
    "control tokens": (build_escape(COMMON_CONTROLS), MARKED, 8_000),
    "templates of a judge": (fill_template, MARKED, 16_000),
    "templates of a row": (render_row, MARKED, 16_000),
    "calculator": (Calculator().step, CALCULATIONS, 8_000),
    "terminal": (make_printable, tuple(repeat(text) for text in ("\x1b", "a", "\u202e")), 16_000),
}
CASES = [
    pytest.param(parse, texts, length, id=name) for name, (parse, texts, length) in PARSERS.items()
]


def cpu_s(parse: Parse, text: str) -> float:
    start = time.process_time()
    parse(text)
    return time.process_time() - start


def test_linear_time_cases_cover_every_instruction_kind() -> None:
    kinds = {
        name
        for kind in get_args(AnyInstruction)
        for name in get_args(kind.model_fields["id"].annotation)
    }
    assert KINDS_ASKED.keys() == kinds


@pytest.mark.parametrize(("parse", "texts", "length"), CASES)
def test_parsing_time_grows_less_than_quadratically_with_text_length(
    parse: Parse, texts: Sequence[Text], length: int
) -> None:
    """Four times the text may take ten times as long, and a little more; where its square counts,
    it takes sixteen.
    """
    for number, text in enumerate(texts):
        once_s, twice_s = (cpu_s(parse, text(times * length)) for times in (1, 2))
        allowed_s = 10 * min(once_s, twice_s) + 0.05
        four_times = text(4 * length)
        assert any(cpu_s(parse, four_times) < allowed_s for _ in range(3)), (
            f"text {number}, {four_times[:40]!r}…"
        )
