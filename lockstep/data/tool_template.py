"""Tools in chat templates: schemas in the prompt, and results of calls after a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from lockstep.core.errors import InputError
from lockstep.data.messages import (
    ChatMessage,
    ChatTemplateError,
    TemplateValues,
    find_answer_end,
    render_prompt,
)
from lockstep.data.prompts import token_ids

_QUESTION: ChatMessage = {"role": "user", "content": "Question."}
_REPLY = "What Lockstep writes in place of a reply"
_PROBES = ("Sunny", "Rainy")


class ToolTemplate:
    """Renders tool results after a reply; the reply keeps its sampled tokens.

    Args:
        tokenizer: Tokenizer with the chat template.
        values: Its arguments, including `tools`.
        stops: The model's stop tokens, which end a reply.

    Raises:
        InputError: The template leaves out tools or results, or changes the text before them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, values: TemplateValues, stops: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._values = values
        self._stops = stops
        self._name = values["tools"][0]["function"]["name"]
        call = {
            "type": "function",
            "id": "call00000",
            "function": {"name": self._name, "arguments": {"x": _REPLY}},
        }
        self._talk: list[ChatMessage] = [
            _QUESTION,
            {"role": "assistant", "content": _REPLY, "tool_calls": [call]},
        ]
        self._end = find_answer_end(tokenizer, stops, values, self._talk, _REPLY)
        whose = f"the chat template of {tokenizer.name_or_path}"
        try:
            self._opening = render_prompt([_QUESTION], tokenizer, values)
            self._require_all(whose)
        except ChatTemplateError as error:
            raise InputError(
                f"{whose} rejects tool results ({error}); use a model whose template supports them"
            ) from None

    def encode_results(self, results: Sequence[Mapping[str, Any]], last: int) -> Sequence[int]:
        """The tokens after a reply that ends with `last`, up to the start of the next reply."""
        tokens = token_ids(
            self._tokenizer, [self._render_follow_up(results)], add_special_tokens=False
        )[0]
        end = next(index for index, token in enumerate(tokens) if token in self._stops)
        replaces_end = last == tokens[end] or (last in self._stops and tokens[end] == self._end)
        return tokens[end + replaces_end :]

    def _render_follow_up(self, results: Sequence[Mapping[str, Any]]) -> str:
        """The end of a placeholder reply, and all that follows it."""
        follows = render_prompt([*self._talk, *results], self._tokenizer, self._values).partition(
            _REPLY
        )[2]
        if not follows:
            raise ChatTemplateError("it omits assistant messages and their calls")
        return follows

    def _require_all(self, whose: str) -> None:
        bare = {name: value for name, value in self._values.items() if name != "tools"}
        if self._opening == render_prompt([_QUESTION], self._tokenizer, bare):
            raise InputError(
                f"{whose} ignores tools, so the model would not see them; use one that renders them"
            )
        results = [
            {
                "role": "tool",
                "tool_call_id": f"call{number:05}",
                "name": self._name,
                "content": text,
            }
            for number, text in enumerate(_PROBES)
        ]
        whole = render_prompt([*self._talk, *results], self._tokenizer, self._values)
        places = list(map(whole.find, _PROBES))
        if not 0 <= places[0] < places[1]:
            raise InputError(
                f"{whose} omits tool results or changes their order; use one that renders them"
            )
        longer = render_prompt(
            [_QUESTION, {"role": "assistant", "content": "x"}, _QUESTION],
            self._tokenizer,
            self._values,
        )
        if not whole.startswith(self._opening) or not longer.startswith(self._opening):
            raise InputError(
                f"{whose} renders a prompt differently once it has an answer, but sampled tokens "
                "cannot change; use one that only appends"
            )
        if not set(self._stops) & set(
            token_ids(self._tokenizer, [self._render_follow_up(results)], add_special_tokens=False)[
                0
            ]
        ):
            raise InputError(
                f"{whose} does not end a call with a stop token of the model, so results cannot "
                "follow it; add the token to eos_token_id in generation_config.json"
            )
