"""The initial model of a run: loaded from a folder, or created from scratch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lockstep.config import Common, ModelFolder, PromptSection, Sampling
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.errors import InputError
from lockstep.core.types import SamplingParams
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.messages import find_passed_end
from lockstep.data.prompts import is_chat, token_ids
from lockstep.data.selection import read_texts
from lockstep.data.thoughts import decode_marked
from lockstep.models.export import save_model
from lockstep.models.folder import find_context_length, read_config, read_json
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer
from lockstep.models.weight_files import are_on_hub, require_rewards


@dataclass(frozen=True)
class ModelSource:
    """The initial model: folder, tokenizer, stop tokens, longest sequence, and vocabulary size."""

    folder: str
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    context: int
    vocabulary: int

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes a response as its prompt's continuation.

        Of special tokens, only those that mark thoughts are kept. It is decoded after a letter,
        because some tokenizers (Llama 2's) drop the space before the first word of a text.
        """
        letter, before = self._letter_prefix
        return self._decode_tokens([*letter, *tokens])[len(before) :]

    @cached_property
    def _letter_prefix(self) -> tuple[list[int], str]:
        """The tokens of a letter, and their text."""
        tokens = self.token_ids("a")
        return tokens, self._decode_tokens(tokens)

    def _decode_tokens(self, tokens: list[int]) -> str:
        return decode_marked(self.tokenizer, tokens)

    def token_ids(self, text: str) -> list[int]:
        """Encodes a text that continues another, without special tokens."""
        return token_ids(self.tokenizer, [text], add_special_tokens=False)[0]

    def prompt_ids(self, text: str) -> list[int]:
        """Encodes a text that begins a sequence, with special tokens such as BOS."""
        return token_ids(self.tokenizer, [text], add_special_tokens=True)[0]

    def sampling(self, section: Sampling) -> SamplingParams:
        """The sampling distribution of a section of the recipe, for this model."""
        return section.params(self.stop_token_ids)

    def require_room(self, lengths: Mapping[str, int]) -> None:
        """Raises an InputError if tokens that options allow exceed the model's context."""
        faults = [
            f"{option} allows sequences of {tokens} tokens, but the model in {self.folder} "
            f"supports at most {self.context}; lower "
            + ("one of the options" if "+" in option else "it")
            for option, tokens in lengths.items()
            if tokens > self.context
        ]
        if faults:
            raise InputError("\n".join(faults))


def scratch_model(recipe: Common, files: FileGroup, folder: Path) -> Path:
    """Creates a model and its tokenizer from the rows of `files`, once, in `folder`."""
    if not folder.exists():
        scratch = recipe.model.scratch
        tokenizer = scratch_tokenizer(recipe, files)
        assert scratch is not None, "only a recipe with model.scratch builds a new model"
        save_model(build_causal_lm(scratch.config, tokenizer, recipe.seed), tokenizer, folder)
    return folder


def scratch_tokenizer(recipe: Common, files: FileGroup) -> PreTrainedTokenizerFast:
    """A new model's tokenizer, made from the rows of `files`."""
    data = recipe.data
    return words_tokenizer(read_texts(open_rows(files, data.bad_rows), data))


def open_source(folder: Path | str) -> ModelSource:
    """Reads the tokenizer and the stop tokens of a model folder."""
    whole = read_config(folder)
    tokenizer = load_tokenizer(folder)
    config = whole.get_text_config()
    rows = int(config.vocab_size)
    own = _read_stops(Path(folder), rows)
    stops = sorted({stop for stop in (tokenizer.eos_token_id, *own) if isinstance(stop, int)})
    if not stops:
        raise InputError(
            f"the model in {folder} has no stop token (eos_token_id), so responses would never end"
        )
    vocabulary = tokenizer.get_vocab().values()
    producible = {token for token in vocabulary if token != tokenizer.pad_token_id}
    largest = max(producible | set(stops))
    if largest >= rows:
        token = f"{largest} ({tokenizer.decode([largest])!r})"
        raise InputError(
            f"the tokenizer in {folder} produces token {token}, but the model has only {rows} "
            "embeddings; use the model's own tokenizer"
        )
    return ModelSource(str(folder), tokenizer, tuple(stops), find_context_length(whole), rows)


def _read_stops(folder: Path, vocabulary: int) -> list[int]:
    """The stop tokens in generation_config.json, or else in config.json, as in `transformers`."""
    generation = folder / "generation_config.json"
    if generation.is_file():
        named = read_json(folder, generation.name, "").get("eos_token_id")
    else:
        named = None
    if named is None:
        config = read_json(folder, "config.json", "")
        inner = config.get("text_config")
        named = config.get(
            "eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None
        )
        return [stop for stop in _as_list(named) if _is_token(stop, vocabulary)]
    if not all(_is_token(stop, vocabulary) for stop in _as_list(named)):
        raise InputError(
            f"{generation}: eos_token_id is {json.dumps(named)}, but must be token ids from 0 to "
            f"{vocabulary - 1}; correct it"
        )
    return _as_list(named)


def _as_list(named: Any) -> list[Any]:
    if isinstance(named, list):
        return named
    if named is None:
        return []
    return [named]


def _is_token(stop: object, vocabulary: int) -> bool:
    return isinstance(stop, int) and not isinstance(stop, bool) and 0 <= stop < vocabulary


def describe_template(source: ModelSource, data: PromptSection) -> str | None:
    """A remark if the chat template is not used, or ends turns with a non-stop token; else None."""
    if source.tokenizer.chat_template is None:
        return None
    if not is_chat(data):
        return (
            f"the model in {source.folder} has a chat template, but data.chat=false writes prompts "
            "without it; if it is a chat model, set data.chat=true"
        )
    end = find_passed_end(source.tokenizer, source.stop_token_ids, data.template_args)
    if end is None:
        return None
    name, stop = source.tokenizer.convert_ids_to_tokens([end, source.stop_token_ids[0]])
    return (
        f"the chat template in {source.folder} ends a turn with {name}, which is not a stop "
        f"token; generation continues to {stop}, which SFT learns instead; to stop at {name}, add "
        f"{end} to eos_token_id in generation_config.json"
    )


def own_folder(section: ModelFolder, source: ModelSource) -> str:
    """The folder of a model with the same vocabulary as another model.

    Raises:
        ValueError: If the vocabulary differs, or it is an unfinished run.
    """
    folder = find_weights_folder(section.path)
    if load_tokenizer(folder).get_vocab() != source.tokenizer.get_vocab():
        raise InputError(
            f"the model in {folder} has a different tokenizer than the policy in {source.folder}; "
            "train it from a model with the same tokenizer"
        )
    return str(folder)


def reward_folder(section: ModelFolder, source: ModelSource) -> str:
    """The folder of a reward model with the same vocabulary as another model.

    Raises:
        ValueError: As `own_folder`, or if it is not a reward model.
    """
    folder = own_folder(section, source)
    if not are_on_hub(Path(folder)):
        require_rewards(Path(folder))
    return folder
