"""Names on the Hugging Face Hub in recipes: `hf:owner/name` for models, `hf:datasets/owner/name/file` for rows.

`@revision` after the name is a branch, a tag or a commit. A recipe keeps the name as it is written; what reads the
recipe has a local path, once `lockstep.config.hub` has fetched what is named. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, PlainSerializer, ValidationInfo

from lockstep.errors import InputError
from lockstep.paths import HUB, expand
from lockstep.records import is_file, read_record

PINS = "hub.json"
"""File in a run's folder: the commit of each name on the hub, by the name as the recipe has it."""

_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>(?:refs/(?:pr|convert)/)?\w[\w.-]*))?"
_MODEL = re.compile(HUB + _REPO)
_ROWS = re.compile(f"{HUB}datasets/{_REPO}(/(?P<file>.+))?")
_NO_NAMES = {"", ".", ".."}
_COMMIT = re.compile(r"[0-9a-f]{40}")

Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class HubName:
    """A model, or a file of a data set, on the hub.

    Attributes:
        text: The name as it is written.
        kind: What it names.
        repo: `owner/name`.
        revision: Branch, tag or commit; None: none is said.
        file: Path of the file in the data set; None: a data set whose file is not said, or a model.
    """

    text: str
    kind: Kind
    repo: str
    revision: str | None
    file: str | None

    @property
    def is_pinned(self) -> bool:
        """True if it names a commit, which never changes."""
        return self.revision is not None and is_commit(self.revision)


def is_commit(revision: str) -> bool:
    """True for the full digest of a commit."""
    return _COMMIT.fullmatch(revision) is not None


def parse_model(text: str) -> HubName:
    """Reads the name of a model; raises ValueError for another text."""
    match = _MODEL.fullmatch(text)
    if match is None or match["repo"].startswith("datasets/") or not _may_be(match["repo"]):
        raise ValueError(f"{text} names no model on the hub: say hf:owner/name, or hf:owner/name@revision")
    return HubName(text, "model", match["repo"], match["revision"], None)


def parse_rows(text: str) -> HubName:
    """Reads the name of a data set's file; raises ValueError for another text."""
    match = _ROWS.fullmatch(text)
    if match is None or not _may_be(match["repo"]) or not _NO_NAMES.isdisjoint((match["file"] or "-").split("/")):
        raise ValueError(
            f"{text} names no file of a data set on the hub: say hf:datasets/owner/name/file.jsonl, or "
            "hf:datasets/owner/name@revision/file.jsonl"
        )
    return HubName(text, "dataset", match["repo"], match["revision"], match["file"])


def _may_be(repo: str) -> bool:
    """True if the hub allows this `owner/name`: it forbids `--` and a dot at an end, for example."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError:
        return False
    return True


def read_pins(folder: Path) -> dict[str, str]:
    """The commits that a run's folder notes, by name.

    Raises:
        InputError: The note is damaged.
    """
    file, cure = folder / PINS, "put it back, or remove it"
    pins = read_record(file, dict[str, str], cure) if is_file(file) else {}
    if not all(map(is_commit, pins.values())):
        raise InputError(f"{file} holds what is no commit; {cure}")
    return pins


class Fetched(str):
    """A local path that stands for a name on the hub; a recipe is written with the name."""

    name: str

    def __new__(cls, path: str, name: str) -> Fetched:
        made = super().__new__(cls, path)
        made.name = name
        return made

    def __reduce__(self) -> tuple[type[Fetched], tuple[str, str]]:
        return Fetched, (str(self), self.name)


@dataclass
class HubPaths:
    """The context of a validation that replaces names on the hub by local paths.

    Attributes:
        paths: Local paths by name; a name that is not here stays.
        seen: Names that the recipe has.
    """

    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    seen: dict[str, HubName] = field(default_factory=dict[str, HubName])

    def find(self, name: HubName) -> str:
        """The local path; where there is none, the name."""
        self.seen[name.text] = name
        path = self.paths.get(name.text)
        return name.text if path is None else Fetched(path, name.text)


def _find(name: HubName, info: ValidationInfo) -> str:
    return info.context.find(name) if isinstance(info.context, HubPaths) else name.text


def _model(path: str, info: ValidationInfo) -> str:
    return _find(parse_model(path), info) if path.startswith(HUB) else expand(path)


def _rows(named: str | tuple[str, ...], info: ValidationInfo) -> str | tuple[str, ...]:
    if isinstance(named, tuple):
        return tuple(_one(path, info) for path in named)
    return _one(named, info)


def _one(path: str, info: ValidationInfo) -> str:
    return _find(parse_rows(path), info) if path.startswith(HUB) else expand(path)


def as_written(path: str) -> str:
    """The name on the hub that a path stands for, or the path."""
    return path.name if isinstance(path, Fetched) else path


def _all_as_written(named: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return as_written(named) if isinstance(named, str) else tuple(map(as_written, named))


ModelPath = Annotated[str, AfterValidator(_model), PlainSerializer(as_written)]
"""A model's folder on this machine, or its name on the hub."""

RowsPath = Annotated[str, AfterValidator(_rows), PlainSerializer(as_written)]
"""A file of rows on this machine, or its name on the hub."""

ROWS = (AfterValidator(_rows), PlainSerializer(_all_as_written))
"""Validator and serializer of files of rows, one or several, on this machine or on the hub."""
