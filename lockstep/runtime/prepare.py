"""What must be there before the first step: data files, a model folder, a tokenizer, prompts."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import lockstep
from lockstep.config import Loaded, describe, load
from lockstep.experience import arithmetic
from lockstep.experience.demonstrations import Demonstrations
from lockstep.experience.files import Files, open_rows
from lockstep.experience.prompts import Prompts
from lockstep.experience.selection import texts
from lockstep.models.export import save_model
from lockstep.models.folder import read_config
from lockstep.models.load import build_causal_lm
from lockstep.models.tokenizer import load_tokenizer, words_tokenizer
from lockstep.recipe import Common, DataSection, Sampling, SFTRecipe
from lockstep.runtime.identity import ChangedError, differences, recipe_identity
from lockstep.types import SamplingParams

FRAME = "initial"
"""Folder, in a run's, of all that an export of its model needs besides weights; of new models the weights too."""


@dataclass(frozen=True)
class DataFiles:
    """Files of rows: to draw prompts from, to imitate (the same, unless the data is made), to validate on."""

    train: Files
    demonstrations: Files
    validation: Files | None

    def digests(self) -> dict[str, str]:
        """A digest of the content of the files, by what they are for first; the rows' index has it, so none is read."""
        names = {self.validation: "validation", self.demonstrations: "demonstrations", self.train: "train"}
        return {name: open_rows(files, "skip").digest[:16] for files, name in names.items() if files is not None}


@dataclass(frozen=True)
class Source:
    """The first model: its folder, its tokenizer, the tokens that end a response, and the longest sequence it reads."""

    folder: str
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    context: int

    def decode(self, tokens: Sequence[int]) -> str:
        """A response as text, without its stop token."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def sampling(self, section: Sampling) -> SamplingParams:
        """The distribution of a section of the recipe, for this model."""
        fields = {name: value for name, value in section.model_dump().items() if name in Sampling.model_fields}
        return SamplingParams(**fields, stop_token_ids=self.stop_token_ids)

    def require_room(self, option: str, tokens: int) -> None:
        """Raises ValueError if sequences of `tokens` tokens, which `option` allows, do not fit the model."""
        if tokens > self.context:
            raise ValueError(
                f"{option} allows sequences of {tokens} tokens, but the model in {self.folder} reads at most "
                f"{self.context}; lower one of the options"
            )


def run_folder(loaded: Loaded, allow_changes: bool) -> Path:
    """Makes the run's folder and notes the resolved recipe and the machine in it.

    With `allow_changes` a folder of another recipe becomes one of this recipe, which is then no longer finished.

    Raises:
        ValueError: If the folder cannot be made.
        ChangedError: If it holds a run of another recipe, and that is not allowed.
    """
    folder = loaded.run_folder
    require_writable(folder)
    recipe, changed = folder / "recipe.yaml", changed_options(loaded, allow_changes)
    if recipe.exists() and recipe.read_text() != describe(loaded):
        recipe.unlink()
    if changed:
        shutil.rmtree(folder / "final", ignore_errors=True)
    return noted_folder(loaded, folder)


def changed_options(loaded: Loaded, allow_changes: bool) -> list[str]:
    """What is another recipe than that of the run which the folder holds, one line for each option.

    Raises:
        ChangedError: If something is, and that is not allowed.
    """
    folder, recipe = loaded.run_folder, loaded.run_folder / "recipe.yaml"
    if not recipe.exists() or recipe.read_text() == describe(loaded):
        return []
    changed = differences(recipe_identity(load(str(recipe))), recipe_identity(loaded))
    if changed and not allow_changes:
        raise ChangedError(
            f"{folder} holds a run of another recipe:\n  " + "\n  ".join(changed) + "\nchoose another run.folder, "
            "remove it, or go on with this recipe by --allow-changes"
        )
    return changed


def noted_folder(loaded: Loaded, folder: Path) -> Path:
    """Makes a folder and notes the resolved recipe and the machine in it, where they are not noted yet."""
    folder.mkdir(parents=True, exist_ok=True)
    note(folder / "recipe.yaml", describe(loaded))
    versions = {
        "recipe": loaded.name,
        "lockstep": lockstep.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.platform(),
    }
    environment, now = folder / "environment.json", json.dumps(versions, indent=2) + "\n"
    note(environment, now)
    if environment.read_text() != now:
        print(f"note: {environment} is not the environment of now; continued steps may differ in their last bits")
    return folder


def require_writable(folder: Path) -> None:
    """Raises ValueError if a run's folder cannot be made, or not written to."""
    place = standing(folder)
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise ValueError(
            f"the run folder {folder} cannot be made, because {place} is not a folder that can be written to; set "
            "run.folder to another place"
        )


def standing(folder: Path) -> Path:
    """The innermost of a folder and those above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if _exists(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # something above it is a file
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder; the system lets go of it when this one ends, however it ends.

    Raises:
        ValueError: If another process has it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{folder} is in use by another process; wait for it, end it, or set run.folder to start another run"
            ) from None
        yield


def note(path: Path, text: str) -> None:
    """Writes a small file once; it appears whole or not at all."""
    if not path.exists():
        aside = path.with_name(f".{path.name}-aside")
        aside.write_text(text)
        aside.rename(path)


def data_files(section: DataSection, folder: Path) -> DataFiles:
    """The recipe's files, made first where the recipe says so."""
    if section.arithmetic is None:
        assert section.train is not None, "a recipe names data or makes it"
        train = files_of(section.train, section.weights)
        return DataFiles(train, train, None if section.validation is None else files_of(section.validation))
    made = arithmetic.write(folder / "data", section.arithmetic)
    return DataFiles(Files((made.train,)), Files((made.demonstrations or made.train,)), Files((made.validation,)))


def files_of(paths: str | tuple[str, ...], weights: tuple[float, ...] | None = None) -> Files:
    """Files as a recipe names them."""
    return Files(tuple(map(Path, (paths,) if isinstance(paths, str) else paths)), weights)


def scratch_model(recipe: Common, files: Files, folder: Path) -> Path:
    """Builds a model, and its tokenizer from the rows of `files`, once, into `folder`."""
    if not folder.exists():
        scratch, tokenizer = recipe.model.scratch, scratch_tokenizer(recipe, files)
        assert scratch is not None, "only a recipe with model.scratch asks for a new model"
        save_model(build_causal_lm(scratch.config, tokenizer, recipe.seed), tokenizer, folder)
    return folder


def scratch_tokenizer(recipe: Common, files: Files) -> PreTrainedTokenizerFast:
    """The tokenizer of a new model, made from the rows of `files`."""
    data = recipe.data
    return words_tokenizer(texts(open_rows(files, data.bad_rows), data, (data.prompt, data.completion)))


def open_source(folder: Path | str) -> Source:
    """Reads the tokenizer of a model folder and what ends its responses."""
    config, tokenizer = read_config(folder).get_text_config(), load_tokenizer(folder)
    listed = [tokenizer.eos_token_id]
    if (Path(folder) / "generation_config.json").is_file():
        own = GenerationConfig.from_pretrained(folder).eos_token_id
        listed += own if isinstance(own, list) else [own]
    stops = sorted({stop for stop in listed if isinstance(stop, int)})
    if not stops:
        raise ValueError(f"the model in {folder} names no stop token (eos_token_id); responses could never end")
    _require_embeddings(folder, tokenizer, stops, int(config.vocab_size))
    try:
        context = int(config.max_position_embeddings)
    except AttributeError:
        raise ValueError(f"{folder}/config.json says no max_position_embeddings; add the longest sequence") from None
    return Source(str(folder), tokenizer, tuple(stops), context)


def _require_embeddings(folder: Path | str, tokenizer: PreTrainedTokenizerBase, stops: list[int], rows: int) -> None:
    """Raises ValueError if the tokenizer makes tokens that the model has no embedding for; padding is never made."""
    made = {token for token in tokenizer.get_vocab().values() if token != tokenizer.pad_token_id}
    largest = max(made | set(stops))
    if largest >= rows:
        raise ValueError(
            f"the tokenizer in {folder} makes token {largest}, but the model has embeddings for {rows} tokens; bring "
            "the tokenizer that belongs to the model"
        )


def prompts(files: Files, section: DataSection, tokenizer: PreTrainedTokenizerBase) -> Prompts:
    """Opens files of rows as prompts."""
    return Prompts(open_rows(files, section.bad_rows), tokenizer, section)


def demonstrations(files: Files, recipe: SFTRecipe, tokenizer: PreTrainedTokenizerBase) -> Demonstrations:
    """Opens files of rows as demonstrations."""
    return Demonstrations(open_rows(files, recipe.data.bad_rows), tokenizer, recipe.data, recipe.sft.max_tokens)
