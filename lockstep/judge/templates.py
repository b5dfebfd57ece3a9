"""A judge's questions: templates, plain-text conversations, and escaping of control tokens.

The rubric of `ADDITIVE` counts one point for each of five demands, after Self-Rewarding (Yuan et
al. 2024, arXiv 2401.10020); `META` compares two judgments, after Meta-Rewarding (Wu et al. 2024,
arXiv 2407.19594). The wording is ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from lockstep.core.errors import InputError
from lockstep.data.messages import ChatMessage, render_plain
from lockstep.data.templates import fill_template, list_fields

SCORE_FIELDS = ("prompt", "response")
PAIR_FIELDS = ("prompt", "response_a", "response_b")
META_FIELDS = ("prompt", "response", "judgement_a", "judgement_b")

_RUBRIC = """\
The response starts with 0 points and gains one for each of these demands that it meets; each stands by itself:
1. It is about what the user asked and contains something of use, even if it leaves gaps or strays from the subject.
2. It covers most of what the user wanted to know or have, although it may not settle the matter.
3. It settles the core of the request in a way that the user can act on, whoever wrote it.
4. It is written by a helpful assistant for this user: to the point, complete, in good order, and hardly improvable.
5. It is what an expert would write for this very user: right in every detail, insightful, easy to follow, and without
a superfluous word."""

ADDITIVE = f"""\
Below are a user's request and an assistant's response. Decide how good the response is by counting points.

{_RUBRIC}

<request>
{{prompt}}
</request>

<response>
{{response}}
</response>

Go through the five demands in at most 100 words and say which of them are met. Then end with one line that holds
nothing but the sum, from 0 to 5:
Score: <sum>"""

PAIRWISE = """\
Below are a user's request and two responses to it, A and B. Decide which of them serves the user better. Look at
whether it does what was asked, whether it is right, and whether it is complete and clear. Its length, its tone, and the
order in which the two are shown say nothing about that.

<request>
{prompt}
</request>

<response-a>
{response_a}
</response-a>

<response-b>
{response_b}
</response-b>

Compare the two in at most 100 words. Then end with one line that names the better one, and you must choose:
Winner: Response A
or
Winner: Response B"""

META = f"""\
Below are a user's request, an assistant's response, and two judgements of that response, A and B. Both judges were told
to count points as follows.

{_RUBRIC}

<request>
{{prompt}}
</request>

<response>
{{response}}
</response>

<judgement-a>
{{judgement_a}}
</judgement-a>

<judgement-b>
{{judgement_b}}
</judgement-b>

Decide which judgement applies these demands to the response more correctly: whose reasons are true of the response, and
whose points follow from them. How long a judgement is, and how generous, says nothing about that. Explain your choice
in at most 100 words. Then end with one line that names the better judgement, and you must choose:
Winner: Judgement A
or
Winner: Judgement B"""

COMMON_CONTROLS = (
    *("<s>", "</s>", "<bos>", "<eos>", "<pad>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    *("<start_of_turn>", "<end_of_turn>", "<extra_id_0>", "<extra_id_1>", "<think>", "</think>"),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
    ),
    *(
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
    ),
    *("<|start|>", "<|channel|>", "<|message|>", "<|return|>"),
)
"""Control tokens of common tokenizers, for a server with an unknown tokenizer."""

_ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}


@dataclass(frozen=True)
class JudgeTemplate:
    """The template of a judge's question, with `{field}`s for the case; `{{` and `}}` are braces.

    Attributes:
        text: The template.
        fields: Required fields.
        option: Name of the template's option, for messages.

    Raises:
        ValueError: The template is malformed or has different fields.
    """

    text: str
    fields: tuple[str, ...]
    option: str

    def __post_init__(self) -> None:
        found = list(dict.fromkeys(list_fields(self.text)))
        missing = [name for name in self.fields if name not in found]
        unknown = [name for name in found if name not in self.fields]
        wrong = [f"lacks {_join_names(missing)}"] if missing else []
        wrong += [f"has unknown {_join_names(unknown)}"] if unknown else []
        if wrong:
            raise InputError(
                f"{self.option} {' and '.join(wrong)}; its fields must be "
                f"{_join_names(self.fields)}"
            )

    def fill_case(self, texts: Mapping[str, str]) -> str:
        """Fills in a case."""
        return fill_template(self.text, texts, self.option)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def format_conversation(conversation: Sequence[ChatMessage]) -> str:
    """Formats a conversation as plain text; several messages have their roles."""
    if [message["role"] for message in conversation] == ["user"]:
        return render_plain(conversation[0])
    parts: list[str] = []
    for message in conversation:
        speaker = _ROLES.get(message["role"], str(message["role"]).capitalize())
        parts.append(f"{speaker}: {render_plain(message)}")
    return "\n\n".join(parts)


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Strings that a tokenizer always reads as one token: special and non-word added tokens."""
    added = tokenizer.added_tokens_decoder.values()
    signs = (
        token.content for token in added if token.special or not token.content.strip().isalnum()
    )
    return tuple(sorted({*signs, *map(str, tokenizer.all_special_tokens)}))


def build_escape(controls: Iterable[str]) -> Callable[[str], str]:
    """Builds a function that breaks control tokens into readable text: `< |im_end|>`."""
    longest_first = sorted((token for token in controls if token.strip()), key=len, reverse=True)
    if not longest_first:
        return lambda text: text
    found = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)

    def break_controls(text: str) -> str:
        while found.search(text):  # more than once if tokens overlap
            text = found.sub(lambda match: _break_token(match[0]), text)
        return text

    return break_controls


def _break_token(token: str) -> str:
    """Breaks a token with a space after its first visible character; a single one is removed."""
    first = len(token) - len(token.lstrip()) + 1
    if len(token.strip()) > 1:
        return f"{token[:first]} {token[first:]}"
    return " "
