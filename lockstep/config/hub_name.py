"""Hugging Face Hub names in recipes: `hf:owner/name`, or `hf:datasets/owner/name` for rows.

The name of a data set may end with a split, a configuration and a split, or a file. `@revision`
after the name is a branch, a tag or a commit. A recipe keeps the name as written; code that reads
the recipe sees a local path after `lockstep.config.hub` has fetched the files. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from lockstep.core.errors import InputError
from lockstep.system.paths import HUB, expand_path
from lockstep.system.records import is_file, read_record

PINS = "hub.json"
"""File in a run's folder with the commit of each Hub name; the keys are the recipe's names."""

_NAME = re.compile(
    HUB
    + r"(?P<rows>datasets/)?(?P<repo>[\w.-]+/[\w.-]+)"
    + r"(@(?P<revision>(?:refs/(?:pr|convert)/)?\w[\w.-]*))?"
    r"(/(?P<file>.+))?"
)
ROW_FILES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
"""Suffixes of files of rows."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FORMS = {
    "model": "a hub model; write hf:owner/name or hf:owner/name@revision",
    "dataset": (
        "a hub data set; write hf:datasets/owner/name, hf:datasets/owner/name/config/split or "
        "hf:datasets/owner/name@revision/file.jsonl"
    ),
}


@dataclass(frozen=True)
class HubName:
    """A model, or a file or split of a data set, on the Hub.

    Attributes:
        text: The name as written.
        kind: The Hub's repository type: `model` or `dataset`.
        repo: `owner/name`.
        revision: Branch, tag or commit; None if not given.
        file: Path of the file in the repository, or a split; None if not given, as for a model.
    """

    text: str
    kind: str
    repo: str
    revision: str | None
    file: str | None

    @property
    def is_split(self) -> bool:
        """True for a split of a data set, not a file."""
        return self.kind == "dataset" and not (self.file or "").endswith(ROW_FILES)


def is_commit(revision: str | None) -> bool:
    """True for the full digest of a commit, which never changes."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def parse_name(text: str) -> HubName | None:
    """Parses a name; None if the text is not a Hub name."""
    match = _NAME.fullmatch(text)
    if match is None or ".." in (match["file"] or "").split("/"):
        return None
    return HubName(
        text,
        "dataset" if match["rows"] else "model",
        match["repo"],
        match["revision"],
        match["file"],
    )


def parse_name_of_kind(text: str, kind: str) -> HubName:
    """Parses the name of a model or of a data set's file; raises ValueError for any other text."""
    name = parse_name(text)
    if name is None or name.kind != kind or (kind == "model" and name.file is not None):
        raise ValueError(f"{text} is not {_FORMS[kind]}")
    return name


def read_pins(folder: Path) -> dict[str, str]:
    """The commits recorded in a run's folder, by name.

    Raises:
        InputError: The file is damaged.
    """
    file = folder / PINS
    cure = "restore or remove it"
    pins = read_record(file, dict[str, str], cure) if is_file(file) else {}
    if not all(map(is_commit, pins.values())):
        raise InputError(f"{file} has an invalid commit; {cure}")
    return pins


def _resolve_model_path(path: str) -> str:
    if path.startswith(HUB):
        return parse_name_of_kind(path, "model").text
    return expand_path(path)


def _resolve_rows_path(path: str) -> str:
    if path.startswith(HUB):
        return parse_name_of_kind(path, "dataset").text
    return expand_path(path)


def _resolve_all_rows(paths: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if isinstance(paths, str):
        return _resolve_rows_path(paths)
    return tuple(map(_resolve_rows_path, paths))


ModelPath = Annotated[str, AfterValidator(_resolve_model_path)]
"""A local model folder, or a model's name on the Hub."""

RowsPath = Annotated[str, AfterValidator(_resolve_rows_path)]
"""A local file of rows, or its name on the Hub."""

ROWS = AfterValidator(_resolve_all_rows)
"""Validator of one or more files of rows, local or on the Hub."""
