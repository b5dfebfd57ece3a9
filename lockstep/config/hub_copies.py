"""Local copies of models and files of the hub, in huggingface_hub's own cache, which other programs fill too.

A folder does not show which files it lacks. So a fetch leaves a note that lists a model's files, and a copy that has
all of them is used without asking the hub. A copy without a note is used only where the hub cannot be asked.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.config.hub_name import HubName
from lockstep.records import check_shape, is_file, read_record
from lockstep.whole_files import write_changed

INDEX, ALONE = "model.safetensors.index.json", "model.safetensors"
"""The index of sharded weights, and the one file of weights that are not sharded."""
_NOTES = "lockstep"
"""Folder beside a repository's `snapshots`, with a note for each commit."""
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Files that hold a tokenizer; a model has one of them."""
_OPTIONAL = ("generation_config.json", "tokenizer_config.json")
"""Files that a model may be without, and that change what it samples: stop tokens, chat template."""


@dataclass(frozen=True)
class ModelFiles:
    """Names of the files that a whole copy of a model has.

    Attributes:
        beside: Configuration, tokenizer and the like.
        weights: Files of weights.
    """

    beside: tuple[str, ...]
    weights: tuple[str, ...]

    def are_in(self, folder: Path, weights: bool) -> bool:
        """True if a folder has all of these files; `weights` counts the weights, too."""
        return all((folder / file).is_file() for file in (*self.beside, *(self.weights if weights else ())))


@dataclass(frozen=True)
class _WeightIndex:
    """An index of weights; see `transformers`.

    Attributes:
        weight_map: The file of each tensor.
    """

    weight_map: dict[str, str]


def cache_folder() -> str | None:
    """The folder of the hub's files on this machine; None: where huggingface_hub keeps them."""
    said = os.environ.get("HF_HUB_CACHE")
    return None if said is None else os.path.expandvars(os.path.expanduser(said))


def find_copy(name: HubName, file: str, revision: str | None) -> Path | None:
    """A file of a name on this machine; None where it is not here."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name.repo, file, cache_dir=cache_folder(), revision=revision, repo_type=name.kind)
    return Path(path) if isinstance(path, str) else None


def find_noted(name: HubName, commit: str) -> Path | None:
    """The local file of rows, or the local folder of a model that is whole by its note; None where there is none."""
    path = find_copy(name, name.file or "config.json", commit)
    if path is None or name.kind == "dataset":
        return path
    noted = _read_note(path.parent)
    return path.parent if noted is not None and noted.are_in(path.parent, weights=True) else None


def seems_whole(folder: Path, weights: bool) -> bool:
    """True if a model's copy has all files of its note, or, without a note, a tokenizer and the files of its index."""
    files = _read_note(folder)
    if files is None:
        tokenizer = next((file for file in _TOKENIZERS if (folder / file).is_file()), _TOKENIZERS[0])
        files = ModelFiles((tokenizer,), list_weights(folder) if weights else ())
    return files.are_in(folder, weights)


def find_doubtful(name: HubName, folder: Path) -> str | None:
    """An optional file that a copy without a note lacks although the model may have it; None where there is none.

    The cache remembers files that the hub said a model does not have; those are not doubtful.
    """
    from huggingface_hub import try_to_load_from_cache

    if _read_note(folder) is not None:
        return None
    commit = split(folder)[1]
    known = (try_to_load_from_cache(name.repo, file, cache_folder(), commit) for file in _OPTIONAL)
    return next((file for file, found in zip(_OPTIONAL, known, strict=True) if found is None), None)


def list_weights(folder: Path) -> tuple[str, ...]:
    """The files of weights that a folder should have: those of its index, or the one without.

    Raises:
        InputError: The index has no map from tensors to files.
    """
    file = folder / INDEX
    if not file.is_file():
        return (ALONE,)
    refusal = f"{file} has no weight_map from tensors to files"
    index = check_shape(file.read_bytes(), _WeightIndex, refusal, "name another model, or tell its author")
    return tuple(sorted(set(index.weight_map.values())))


def note_files(folder: Path, files: ModelFiles) -> None:
    """Notes which files a model's folder has when it is whole."""
    _note(_note_of(folder), json.dumps(asdict(files)))


def note_commit(path: Path, revision: str) -> None:
    """Notes the commit of a branch or a tag, of which `path` is a copy, for when the hub cannot be asked."""
    repository, commit = split(path)
    _note(repository / "refs" / revision, commit)


def split(path: Path) -> tuple[Path, str]:
    """Splits a path in the cache into the folder of its repository and its commit."""
    at = path.parts.index("snapshots")
    return Path(*path.parts[:at]), path.parts[at + 1]


def _note_of(folder: Path) -> Path:
    repository, commit = split(folder)
    return repository / _NOTES / f"{commit}.json"


def _read_note(folder: Path) -> ModelFiles | None:
    file = _note_of(folder)
    return read_record(file, ModelFiles, "remove it") if is_file(file) else None


def _note(file: Path, text: str) -> None:
    """Writes a note; a cache that this user may only read stays as it is, and the hub is asked the next time."""
    with suppress(OSError):
        write_changed(file, text.encode())
