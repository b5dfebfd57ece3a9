"""An environment's tools: their JSON schemas, calls in responses, and argument checks.

Has no heavy imports until an environment has tools, since it runs in the environment's process.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never, get_type_hints

from lockstep.config.user_code import describe_object
from lockstep.core.errors import InputError
from lockstep.data.thoughts import drop_thought
from lockstep.environments.options import ToolFormat
from lockstep.system.strict_json import HOOKS

ToolFunction = Callable[..., Any]
ToolSchema = Mapping[str, Any]

MARKS: dict[ToolFormat, str] = {"hermes": "<tool_call>", "llama3_json": "{"}
"""Text that starts a call."""

_CLOSING = "</tool_call>"
_KEYS = ("arguments", "parameters")
"""Keys of a call's arguments; models use both in both formats."""
_OTHER_KEYS = {"name", "id", "type"}
_MOST_MALFORMED = 16
_SPACE = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[; \t\r\n]*")


@dataclass(frozen=True)
class ToolCall:
    """A tool call as the policy wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """A malformed call; the policy reads `why` instead of a result."""

    why: str
    name: str = ""


@dataclass(frozen=True)
class ToolTurn:
    """Results of one response's calls: a message per call, and the number of malformed calls."""

    messages: list[dict[str, str]]
    malformed: int


def parse_calls(
    response: str, tool_format: ToolFormat, opened: str = ""
) -> list[ToolCall | MalformedCall]:
    """Parses the calls in a response, after its thought.

    Args:
        response: The model's response.
        tool_format: Format of calls.
        opened: The mark with which the prompt opens a thought, if any.
    """
    # a thought may contain a mark as text
    begins_with_call = not opened and response.lstrip().startswith(MARKS[tool_format])
    answer = response if begins_with_call else drop_thought(response, opened)
    match tool_format:
        case "hermes":
            return list(_parse_hermes(answer))
        case "llama3_json":
            if answer.lstrip().startswith(MARKS[tool_format]):
                return list(_parse_llama(answer))
            return []
        case _:
            assert_never(tool_format)


def _parse_hermes(answer: str) -> Iterator[ToolCall | MalformedCall]:
    """Yields calls between marks, each up to the end of its JSON, which may contain marks."""
    end = 0
    malformed = 0
    while (start := answer.find(MARKS["hermes"], end)) >= 0:
        if malformed == _MOST_MALFORMED:
            yield MalformedCall(f"{malformed} calls are malformed; what follows them is not read")
            return
        call, end = _read_marked(answer, start + len(MARKS["hermes"]))
        malformed += isinstance(call, MalformedCall)
        yield call


def _read_marked(answer: str, start: int) -> tuple[ToolCall | MalformedCall, int]:
    """Returns the call that starts here, which may be malformed, and the index after it."""
    closing = answer.find(_CLOSING, start)
    if closing < 0:
        return MalformedCall(f"the call is not closed by {_CLOSING}"), len(answer)
    after = closing + len(_CLOSING)
    try:
        found, end = _DECODER.raw_decode(answer, _skip_match(_SPACE, answer, start))
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"the call is no JSON ({describe_object(error, str)})"), after
    end = _skip_match(_SPACE, answer, end)
    if answer.startswith(_CLOSING, end):
        return _read_call(found, "arguments"), end + len(_CLOSING)
    if answer.startswith(MARKS["hermes"], end):
        return MalformedCall(f"the call is not closed by {_CLOSING}"), end
    closing = answer.find(_CLOSING, end)
    after = len(answer) if closing < 0 else closing + len(_CLOSING)
    return MalformedCall("text follows the JSON of the call"), after


def _parse_llama(answer: str) -> Iterator[ToolCall | MalformedCall]:
    """Yields JSON objects separated by semicolons or white space."""
    end = _skip_match(_SPACE, answer, 0)
    while end < len(answer):
        try:
            found, end = _DECODER.raw_decode(answer, end)
        except (ValueError, RecursionError) as error:
            yield MalformedCall(f"the call is no JSON ({describe_object(error, str)})")
            return
        yield _read_call(found, "parameters")
        end = _skip_match(_SEPARATORS, answer, end)


def _skip_match(pattern: re.Pattern[str], text: str, start: int) -> int:
    """The index after the match of a pattern that can match the empty text."""
    found = pattern.match(text, start)
    if found is None:
        return start
    return found.end()


_DECODER = json.JSONDecoder(**HOOKS)


def _read_call(found: object, key: str) -> ToolCall | MalformedCall:
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(name, str):
        return MalformedCall(f'a call is {{"name": …, "{key}": {{…}}}}')
    given = [known for known in _KEYS if known in found]
    unknown = found.keys() - _OTHER_KEYS - set(_KEYS)
    if unknown or len(given) > 1:
        wrong = min(unknown) if unknown else "both arguments and parameters"
        return MalformedCall(
            f'the call of {name} has {wrong}; a call is {{"name": …, "{key}": {{…}}}}', name
        )
    arguments = found[given[0]] if given else {}
    if not isinstance(arguments, dict):
        return MalformedCall(f"{given[0]} of {name} is no object", name)
    return ToolCall(name, arguments)


def name_functions(declared: object) -> dict[str, tuple[ToolSchema | None, ToolFunction]]:
    """The declared tools by name: functions, or pairs of a schema and a function.

    Raises:
        InputError: A tool is invalid, or two have the same name.
    """
    named: dict[str, tuple[ToolSchema | None, ToolFunction]] = {}
    for tool in declared if isinstance(declared, list | tuple) else [declared]:
        match tool:
            case (
                {"type": "function", "function": {"name": str() as name}} as schema,
                function,
            ) if callable(function):
                pass
            case function if inspect.isroutine(function):
                schema = None
                name = function.__name__
            case _:
                raise InputError(
                    f"tools returned {describe_object(tool)}; return a list of functions, or of "
                    "pairs of a "
                    "schema, "
                    '{"type": "function", "function": {"name": …}}, and a function'
                )
        if name in named:
            raise InputError(f"two tools are called {name}")
        named[name] = schema, function
    return named


class ToolSet:
    """The tools of an environment class.

    Args:
        declared: Result of the class's method `tools`.

    Attributes:
        schemas: JSON schemas in the format of chat templates.
        waits: True if any tool is an `async def`.

    Raises:
        InputError: A tool has no schema, and its type hints and docstring do not define one.
    """

    def __init__(self, declared: object) -> None:
        from pydantic import TypeAdapter  # as below: only with tools

        named = name_functions(declared)
        self.schemas = [_build_schema(name, *tool) for name, tool in named.items()]
        self.waits = any(inspect.iscoroutinefunction(function) for _, function in named.values())
        self._signatures = {
            name: inspect.signature(function) for name, (_, function) in named.items()
        }
        self._types = dict[str, dict[str, TypeAdapter[Any]]]()
        for name, (schema, function) in named.items():
            if schema is None:
                hints = get_type_hints(function)
                hints.pop("return", None)
                self._types[name] = {key: TypeAdapter(hint) for key, hint in hints.items()}

    def check_call(self, call: ToolCall) -> ToolCall | MalformedCall:
        """Returns the call with strictly checked argument types: text is not a number."""
        from pydantic import ValidationError

        if call.name not in self._signatures:
            return MalformedCall(
                f"there is no tool {call.name}; there are: {', '.join(self._signatures)}", call.name
            )
        try:
            self._signatures[call.name].bind(**call.arguments)
        except TypeError as error:
            return MalformedCall(f"{call.name}: {error}", call.name)
        types = self._types.get(call.name, {})
        values = dict(call.arguments)
        for name in values.keys() & types.keys():
            try:
                values[name] = types[name].validate_json(json.dumps(values[name]), strict=True)
            except ValidationError as error:
                return MalformedCall(f"{call.name}: {name}: {error.errors()[0]['msg']}", call.name)
        return ToolCall(call.name, values)


def _build_schema(name: str, schema: ToolSchema | None, function: ToolFunction) -> ToolSchema:
    if schema is not None:
        return schema
    from transformers.utils.chat_template_utils import get_json_schema  # takes a second

    try:
        return get_json_schema(function)
    except Exception as error:  # from the user's type hints and docstring
        raise InputError(
            f"no JSON schema can be made of the tool {name}: {describe_object(error, str)}"
        ) from None


def build_tool_messages(
    answers: Sequence[tuple[ToolCall | MalformedCall, str]],
) -> list[dict[str, str]]:
    """Messages with the role `tool`, one per call and result, in order."""
    return [
        {
            "role": "tool",
            "tool_call_id": f"call{number:05}",
            "name": replace_surrogates(call.name),
            "content": replace_surrogates(content),
        }
        for number, (call, content) in enumerate(answers)
    ]


def replace_surrogates(text: str) -> str:
    """Replaces unpaired surrogates, which JSON can contain, by question marks."""
    return text.encode("utf-8", "replace").decode()
