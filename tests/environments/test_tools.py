"""Tools: their schemas, the calls that are read from responses, what is answered, and runs that
learn to call them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tool_worlds import HALF, OTHER, QWEN, SUM, WORLDS, hermes
from transformers.utils.chat_template_utils import get_json_schema

from lockstep.algorithms.episodes import build_observation_encoder, start_episode_runner
from lockstep.config import DataSection
from lockstep.core.errors import InputError
from lockstep.data.messages import render_prompt
from lockstep.environments import environment
from lockstep.environments.options import EnvironmentSection
from lockstep.environments.tools import (
    MalformedCall,
    ToolCall,
    ToolSet,
    build_tool_messages,
    parse_calls,
)
from lockstep.models.source import ModelSource, open_source


def test_tool_calls_are_parsed_in_order_and_malformed_calls_give_reason() -> None:
    sums = [{"name": "add", "arguments": {"a": a, "b": 2}} for a in (1, 5)]
    assert parse_calls(f"Let me see. {hermes(*sums)}", "hermes") == [
        ToolCall("add", {"a": a, "b": 2}) for a in (1, 5)
    ]
    assert parse_calls("It is 3.", "hermes") == []
    first, broken, unnamed, listed, cut = parse_calls(
        hermes(sums[0])
        + "<tool_call>{oops}</tool_call>"
        + hermes([1], {"name": "add", "arguments": [1]})
        + "<tool_call>{",
        "hermes",
    )
    assert isinstance(first, ToolCall)
    whys = [call.why for call in (broken, unnamed, listed, cut) if isinstance(call, MalformedCall)]
    assert whys[0].startswith("the call is no JSON (Expecting property name")
    assert whys[1:3] == ['a call is {"name": …, "arguments": {…}}', "arguments of add is no object"]
    assert whys[3] == "the call is not closed by </tool_call>"
    assert isinstance(
        parse_calls("<tool_call>" + "[" * 100_000 + "</tool_call>", "hermes")[0], MalformedCall
    )


def call(name: str, arguments: str = "{}", key: str = "arguments") -> str:
    return f'<tool_call>{{"name": "{name}", "{key}": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("response", "calls"),
    [
        (
            call("a", '{"t": "use </tool_call> to close"}') + call("b"),
            [("a", {"t": "use </tool_call> to close"}), "b"],
        ),
        (call("a", '{"t": "the <tool_call> mark"}'), [("a", {"t": "the <tool_call> mark"})]),
        (call("a", '{"t": "say </think> first"}'), [("a", {"t": "say </think> first"})]),
        (call("a", '{"q": "x"}', "parameters"), [("a", {"q": "x"})]),
        (call("a", '{"q": "x"}', "args"), ["the call of a has args; a call is"]),
        (call("a", '{}, "parameters": {}'), ["the call of a has both arguments and parameters"]),
        (call("a", '{"q": 1, "q": 2}'), ['the call is no JSON (has the key "q" twice']),
        (call("a", '{"q": NaN}'), ["the call is no JSON (holds NaN"]),
        (call("a", '{"q": -1e999}'), ["the call is no JSON (holds -1e999"]),
        (
            call("a").replace("}}<", "}} now<") + call("b"),
            ["text follows the JSON of the call", "b"],
        ),
        (
            call("a").removesuffix("</tool_call>") + call("b"),
            ["the call is not closed by </tool_call>", "b"],
        ),
        (f"<think>Maybe {call('a')}.</think>It is 4.", []),
        (f"Maybe {call('a')}.\n</think>\n\n{call('b')}", ["b"]),
        (f"<think>the tag <tool_call> opens a call</think>{call('a')}", ["a"]),
        (f"<think>{call('a')}", []),
        (
            "<tool_call>x</tool_call>" * 20 + call("a"),
            ["the call is no JSON"] * 16 + ["16 calls are malformed"],
        ),
    ],
)
def test_hermes_parser_handles_tags_in_arguments_thoughts_and_bad_json(
    response: str, calls: list[str | tuple[str, Any]]
) -> None:
    found = parse_calls(response, "hermes")
    for one, expected in zip(found, calls, strict=True):
        if isinstance(one, MalformedCall):
            assert one.why.startswith(str(expected))
        else:
            assert (one.name, one.arguments) == (
                expected if isinstance(expected, tuple) else (expected, {})
            )


def test_tool_calls_inside_prompt_opened_thought_are_ignored() -> None:
    assert parse_calls(call("a"), "hermes", "<think>") == []
    assert parse_calls(f"{call('a')}</think>{call('b')}", "hermes", "<think>") == [
        ToolCall("b", {})
    ]


def test_llama3_json_tool_calls_are_parsed_without_tags() -> None:
    text = '{"name": "add", "parameters": {"a": 1}}; {"name": "now"}'
    assert parse_calls(text, "llama3_json") == [ToolCall("add", {"a": 1}), ToolCall("now", {})]
    assert parse_calls("It is {3}.", "llama3_json") == []
    assert isinstance(parse_calls('{"name": ', "llama3_json")[0], MalformedCall)
    assert parse_calls('{"name": "add", "arguments": {"a": 1}}', "llama3_json") == [
        ToolCall("add", {"a": 1})
    ]
    assert parse_calls('<think>{"name": "a"}</think>\n{"name": "b"}', "llama3_json") == [
        ToolCall("b", {})
    ]
    for wrong in (
        '{"name": "add", "parameters": {"a": 1, "a": 2}}',
        '{"name": "add", "parameters": {"a": Infinity}}',
    ):
        assert isinstance(parse_calls(wrong, "llama3_json")[0], MalformedCall)


def add(a: int, b: int = 0) -> int:
    """Adds.

    Args:
        a: One number.
        b: Another number.
    """
    return a + b


def test_tool_schemas_match_transformers_and_arguments_are_validated() -> None:
    tools = ToolSet([add])
    assert tools.schemas == [get_json_schema(add)]
    given = {"type": "function", "function": {"name": "plus", "parameters": {}}}
    assert ToolSet([(given, add)]).schemas == [given]
    assert tools.check_call(ToolCall("add", {"a": 1})) == ToolCall("add", {"a": 1})
    for call, why in (
        (ToolCall("sub", {}), "there is no tool sub; there are: add"),
        (ToolCall("add", {}), "add: missing a required argument: 'a'"),
        (ToolCall("add", {"a": 1, "c": 1}), "add: got an unexpected keyword argument 'c'"),
        (ToolCall("add", {"a": "1"}), "add: a: Input should be a valid integer"),
    ):
        assert tools.check_call(call) == MalformedCall(why, call.name)
    # nothing is made of hints where a schema is given, nor of what is returned
    own = ToolSet([(given, untyped)])
    assert own.check_call(ToolCall("plus", {"a": "1", "context": 2})) == ToolCall(
        "plus", {"a": "1", "context": 2}
    )
    assert ToolSet([strange]).schemas == [get_json_schema(strange)]
    with pytest.raises(InputError, match="two tools are called add"):
        ToolSet([add, add])
    with pytest.raises(InputError, match="tools returned 3; return a list of functions"):
        ToolSet([3])
    with pytest.raises(
        InputError, match=r"no JSON schema can be made of the tool bare: .*docstring"
    ):
        ToolSet([bare])


def bare(a: int) -> int:
    return a


class Strange:
    """No type of JSON's."""


def untyped(a: int, context: Missing) -> int:  # pyright: ignore  # noqa: F821
    return a


def strange(a: int) -> Strange:
    """Makes one.

    Args:
        a: A number.
    """
    return Strange()


def ask(name: str, *said: str, opened: str = "") -> list[Any]:
    """The answer of an environment in worlds.py to the last response, without what only restarts a
    timeout.
    """
    answers = environment.answers(f"worlds.py:{name}", "hermes")
    move = {
        "episode": 0,
        "row": {},
        "seed": 0,
        "responses": list(said[:1]),
        "observations": [],
        "timeout_s": 5.0,
        "opened": opened,
    }
    heard: list[Any] = []
    replies: list[Any] = []
    for turn in range(1, len(said) + 1):
        question = [move | {"responses": list(said[:turn]), "observations": list(heard)}]
        # which has no event loop; a browser's is in the main one
        with ThreadPoolExecutor(1) as thread:
            replies = thread.submit(
                lambda q=question: [x for x in answers(q) if isinstance(x, dict)]
            ).result()
        heard.append(replies[-1].get("observation"))
    return replies


@pytest.mark.parametrize("name", ["Sums", "Waits"])
def test_tool_calls_of_a_turn_are_answered_in_order(in_tmp: Path, name: str) -> None:
    """Also where they are awaited beside one another: here the first waits for the second."""
    (in_tmp / "worlds.py").write_text(WORLDS)
    [reply] = ask(name, hermes(SUM, {"name": "mul"}, OTHER))
    wrong = "Error: there is no tool mul; there are: add, halve"
    assert [message["content"] for message in reply["observation"]] == ["3", wrong, "10"]
    assert [message["name"] for message in reply["observation"]] == ["add", "mul", "add"]
    assert {message["role"] for message in reply["observation"]} == {"tool"}
    assert (reply["calls"], reply["malformed"], reply["reward"], reply["done"]) == (
        3,
        1,
        0.0,
        False,
    )


def test_response_without_call_reaches_environment_and_raising_tool_fails_episode(
    in_tmp: Path,
) -> None:
    (in_tmp / "worlds.py").write_text(WORLDS)
    [reply] = ask("Sums", hermes(SUM, OTHER), "Ten.")
    assert (reply["reward"], reply["done"], reply["calls"]) == (2.0, True, 0)
    [reply] = ask("Sums", hermes(HALF))
    assert reply["wrong"].startswith("raised ZeroDivisionError: division by zero (worlds.py, line ")


@pytest.fixture
def talker(assets: Path, in_tmp: Path) -> Callable[[str], ModelSource]:
    """A real tokenizer, with a chat template that is given."""
    folder = Path(shutil.copytree(assets / "models/stories260K/hf", in_tmp / "talker"))

    def open_with(template: str) -> ModelSource:
        (folder / "chat_template.jinja").write_text(template)
        return open_source(folder)

    return open_with


CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
DATA = DataSection(train="rows.jsonl", prompt="{q}", chat=True, max_prompt_tokens=9)
SCHEMAS = [get_json_schema(add)]


def test_stop_text_may_be_one_token_only_inside_a_text(
    talker: Callable[[str], ModelSource],
) -> None:
    """As a newline is in SentencePiece, which begins a text with a space."""
    source = talker(CHAT)

    def start(stop: str) -> object:
        section = {
            "class_name": "lockstep.environments.calculator:Calculator",
            "stop": [stop],
            "max_tokens": 9,
        }
        return start_episode_runner(
            EnvironmentSection.model_validate(section), DATA, source, Path(), pytest.fail
        )

    assert source.tokenizer.convert_ids_to_tokens(list(vars(start("\n"))["_stops"])) == ["<0x0A>"]
    with pytest.raises(InputError, match=r"'a\\nb'.* end responses at this text by sampling.stop"):
        start("a\nb")


def test_tool_results_are_tokenized_as_chat_template_renders_them(
    talker: Callable[[str], ModelSource],
) -> None:
    source = talker(QWEN.replace("<|im_end|>", "{{ eos_token }}"))
    data, eos = DATA.with_tools(SCHEMAS), source.token_ids("</s>")[-1]
    observed = build_observation_encoder(data, (), source, pytest.fail)
    calls = [ToolCall("add", {"a": 1}), MalformedCall("why", "sub")]
    results = build_tool_messages([(calls[0], "3"), (calls[1], "Error: why")])
    asked = [{"role": "user", "content": "Who?"}]
    told = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    said = {"role": "assistant", "content": "", "tool_calls": told}
    whole = render_prompt([*asked, said, *results], source.tokenizer, data.template_values)
    behind = source.token_ids(whole)
    tail = [eos, *observed(results, eos)]
    assert behind[-len(tail) :] == tail
    assert "</tool_response><tool_response>\nError: why\n" in str(source.tokenizer.decode(tail))
    # a token of environment.stop: the message is still to be ended
    inside = source.token_ids("x")[-1]
    assert observed(results, inside) == tail
    assert whole.startswith(render_prompt(asked, source.tokenizer, data.template_values))
    assert json.dumps(SCHEMAS[0]["function"]["description"]) in whole


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHAT, "ignores tools, so the model would not see them"),
        (CHAT + "{{ tools }}", "renders a prompt differently once it has an answer"),
        ("{{ tools }}" + CHAT.replace("{{ m.content }}", ("{% if m.role != 'tool' %}{{ m.content "
                                                         "}}{% endif %}")),
         "omits tool results or changes their order"),
        ("{{ tools }}" + CHAT.replace("{{ eos_token }}", ""), ("does not end a call with a stop "
                                                               "token "
                                                              "of the model")),
        ("{{ tools }}{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{% "
         "endif %}" + CHAT,
         r"rejects tool results \(no tools\)"),
        ("{{ tools }}" + CHAT.replace("{{ m.content }}", ("{% if m.role != 'assistant' %}{{ "
                                                         "m.content }}{% endif %}")),
         r"rejects tool results \(it omits assistant messages and their calls\)"),
    ],
)  # fmt: skip
def test_chat_template_without_tool_support_is_rejected(
    talker: Callable[[str], ModelSource], template: str, said: str
) -> None:
    with pytest.raises(InputError, match=rf"the chat template of .*talker {said}"):
        build_observation_encoder(DATA.with_tools(SCHEMAS), (), talker(template), pytest.fail)


"""The shape of Qwen's templates."""
"""Whole responses that are single tokens of the tiny model, so that an untrained one calls
tools.
"""


LLAMA = """{%- for message in messages %}
{%- if message.tool_calls %}{% set call = message.tool_calls[0].function %}<s>assistant

{{ '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ '}' }}</s>
{%- else %}<s>{{ message.role }}

{{ message.content | trim }}</s>
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<s>assistant

{% endif %}"""
"""The shape of Llama 3's templates; `</s>` ends every message."""


@pytest.mark.parametrize("template", [CHAT, QWEN.replace("<|im_end|>", "{{ eos_token }}"), LLAMA])
def test_observation_message_matches_template_after_any_stop_token(
    talker: Callable[[str], ModelSource], template: str
) -> None:
    source = talker(template)
    other, eos = source.stop_token_ids
    observed = build_observation_encoder(DATA, (), source, pytest.fail)
    talk = [("user", "Who?"), ("assistant", "Ann."), ("user", "Colder.\n")]
    whole = render_prompt(
        [{"role": role, "content": said} for role, said in talk], source.tokenizer, {}
    )
    follows = source.token_ids(whole.partition("Ann.")[2])
    assert follows[0] == eos
    assert observed("Colder.\n", eos) == observed("Colder.\n", other) == follows[1:]
