"""Sets up a recipe's environment and the tokenization of its observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lockstep.config import DataSection
from lockstep.core.errors import InputError
from lockstep.data import messages
from lockstep.data.prompts import is_chat
from lockstep.data.tool_template import ToolTemplate
from lockstep.environments.options import EnvironmentSection
from lockstep.environments.tools import MARKS
from lockstep.models.source import ModelSource
from lockstep.rollouts.agents import AgentRunner
from lockstep.rollouts.episode_record import EpisodeObservation
from lockstep.rollouts.episodes import EpisodeRunner, ObservationEncoder
from lockstep.serve.episodes import open_episode_server

_MESSAGE = "Tried."


def start_episode_runner(
    section: EnvironmentSection | None,
    data: DataSection,
    source: ModelSource,
    folder: Path,
    note: Callable[[str], None],
) -> EpisodeRunner | AgentRunner | None:
    """Starts the environment or the agent of a recipe, if it has one.

    Args:
        section: The environment.
        data: The data section, which declares whether prompts are conversations.
        source: The model.
        folder: The run's folder, for the ledger of agents.
        note: Shows a line about failed episodes.

    Raises:
        EnvironmentFault: The environment or the agent cannot be found.
        InputError: The endpoint's packages are missing; or a stop string is not a token of this
            model, its chat template does not support messages after an answer, or it cannot read
            the format of tool calls.
    """
    if section is None:
        return None
    if section.is_agent:
        from lockstep.serve.server import PolicyServer  # which needs packages of its own

        longest = data.max_prompt_tokens + section.max_tokens
        serve = partial(open_episode_server, PolicyServer, source, section.max_turns, longest)
        return AgentRunner(section, serve, folder, note)
    stops = tuple(_find_stop_token(text, source) for text in section.stop)
    if section.tool_format is not None:
        if not is_chat(data):
            raise InputError(
                "environment.tool_format requires a chat template; set data.chat: true, or "
                "data.messages"
            )
        mark = MARKS[section.tool_format]
        if mark not in source.decode(source.token_ids(mark)):
            raise InputError(
                f"environment.tool_format is {section.tool_format}, but the model in "
                f"{source.folder} has no text tokens for {mark}; use the format that it was "
                "trained with"
            )
    return EpisodeRunner(
        section,
        stops,
        source.decode,
        lambda tools: build_observation_encoder(data.with_tools(tools), stops, source, note),
        note,
    )


def describe_rewards(judge: str | None) -> str:
    """Describes whether the environment's rewards count, given the option that overrides them."""
    if judge is None:
        return "its rewards are used"
    return f"its rewards are ignored and {judge} scores; set {judge}=null to use them"


def build_observation_encoder(
    data: DataSection, stops: Sequence[int], source: ModelSource, note: Callable[[str], None]
) -> ObservationEncoder:
    """Builds the function that tokenizes observations, as user messages or as plain text.

    Observations are user messages if prompts are conversations. Tool results become messages with
    the role `tool`.

    Args:
        data: The data section, which declares conversations and tools.
        stops: Tokens that end a turn inside a message.
        source: The model.
        note: Shows a line, once, about text that the model has no token for.

    Raises:
        ValueError: The chat template does not support messages after an answer, or tools.
    """

    values = data.template_values
    if "tools" in values:
        tools = ToolTemplate(source.tokenizer, values, source.stop_token_ids)
    else:
        tools = None
    end, last_tokens = _find_end(source, values) if is_chat(data) else (0, ())
    unknown = source.tokenizer.unk_token_id
    notes: list[str] = []

    def encode_text(text: EpisodeObservation, last: int) -> Sequence[int]:
        if not isinstance(text, str):
            assert tools is not None, "only tools answer with messages"
            return tools.encode_results(text, last)
        # the policy's message is still open
        inside = last in stops or last not in source.stop_token_ids
        if inside or not is_chat(data):
            return source.token_ids(text)
        tokens = source.token_ids(messages.render_follow_up(text, source.tokenizer, values))
        if last in last_tokens:
            return tokens[end:]
        return tokens

    def encode_observation(observation: EpisodeObservation, last: int) -> Sequence[int]:
        tokens = encode_text(observation, last)
        if unknown in tokens and not notes:
            is_text = isinstance(observation, str)
            if is_text:
                text = observation
            else:
                text = "\n".join(message["content"] for message in observation)
            notes.append(text)
            note(
                f"the model has no token for part of the environment's text, first in {text!r}, "
                f"and reads {source.tokenizer.unk_token} instead; change that text"
            )
        return tokens

    return encode_observation


def _find_end(source: ModelSource, values: messages.TemplateValues) -> tuple[int, Sequence[int]]:
    """Finds the tokens with which the chat template closes an assistant message.

    Returns:
        Two results. First, the number of template tokens after an answer, up to and including the
        first stop token; 0 if the text of the next message comes earlier. Second, the tokens that
        take the place of these template tokens if a response ends with one of them, so that the
        end is not written twice: all stop tokens if the template closes answers with one, or only
        the first stop token if it opens the next message.
    """
    try:
        follow_up = messages.render_follow_up(_MESSAGE, source.tokenizer, values)
        before, shown, _ = follow_up.partition(_MESSAGE)
        if not shown:
            raise messages.ChatTemplateError("it leaves out the next user message")
    except messages.ChatTemplateError as error:
        raise InputError(
            f"the chat template in {source.folder} rejects a message after an answer ({error}), "
            "which environments need; use a model with a different template"
        ) from None
    stops = source.stop_token_ids
    tokens = source.token_ids(before)
    end = next((count for count, token in enumerate(tokens, 1) if token in stops), 0)
    if not end:
        return 0, ()
    ends_answers = tokens[end - 1] == messages.find_answer_end(source.tokenizer, stops, values)
    return end, stops if ends_answers else tokens[end - 1 : end]


def _find_stop_token(text: str, source: ModelSource) -> int:
    before = source.token_ids("a")
    inside = source.token_ids(f"a{text}")
    if inside[: len(before)] == before:
        inside = inside[len(before) :]
    # SentencePiece encodes "\n" as two tokens at the beginning of a text, and as one inside it
    for tokens in (source.token_ids(text), inside):
        if len(tokens) == 1 and tokens[0] != source.tokenizer.unk_token_id:
            return tokens[0]
    known = source.tokenizer.get_vocab()
    if text not in known:
        raise InputError(
            f"environment.stop has {text!r}, which is not a single token of the model in "
            f"{source.folder}; use one that is, or end responses at this text by sampling.stop"
        )
    return known[text]
