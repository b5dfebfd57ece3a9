"""Models and data files on the Hugging Face Hub: resolved to a commit, fetched, and recorded.

A command does this before it starts anything else, so that all its processes read local files. Only
the configuration, tokenizer and safetensors of a model are fetched: nothing is unpickled, and no
code of a repository runs. huggingface_hub caches the list of a commit's files, so a partial copy is
detected even offline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config.hub_name import (
    PINS,
    ROW_FILES,
    HubName,
    is_commit,
    parse_name,
    parse_name_of_kind,
    read_pins,
)
from lockstep.config.loading import LoadedRecipe
from lockstep.config.model_recipe import find_weights_folder
from lockstep.core.errors import InputError
from lockstep.system.paths import HUB
from lockstep.system.printable import print_note
from lockstep.system.process_defaults import may_ask_hub
from lockstep.system.whole_files import write_whole
from lockstep.system.yaml12 import list_texts

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_SETTINGS = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Files in a model's top folder that are fetched along with its weights."""
_WEIGHTS = "model*.safetensors"
_INDEX = "model.safetensors.index.json"
_ALONE = "model.safetensors"
"""The index of sharded weights, and the file name of unsharded weights."""
_NAMED = 8
"""Maximum number of a data set's files that a message lists."""
_PARQUET = "refs/convert/parquet"
"""The branch on which the Hub keeps data sets as `config/split/0000.parquet`."""


def fetch_names(loaded: LoadedRecipe, weights: bool = True) -> LoadedRecipe:
    """Fetches the Hub names in a recipe; returns the recipe with local paths for them.

    Args:
        loaded: The recipe. Its names keep the commits recorded in its run's folder or in
            `loaded.pins`.
        weights: Whether to fetch the weights of models, too.

    Raises:
        InputError: The model or file does not exist, has no safetensors, or is not cached and
            cannot be fetched.
    """
    names = _list_names(loaded)
    if not names:
        return loaded
    pins = {**loaded.pins, **read_pins(loaded.run_folder)}
    paths: dict[str, str] = {}
    for name in names:
        commit, path = _fetch_name(name, pins.get(name.text), weights)
        pins[name.text] = commit
        paths[name.text] = str(path)
    return loaded.with_local_paths(paths, pins)


def fetch_model(model: str) -> Path:
    """The folder of a model: `model`, its `final/` if a run, or the fetched copy of a Hub name."""
    if model.startswith(HUB):
        return _fetch_once(model)
    return find_weights_folder(model)


@cache  # so that learner and sampler get the same commit for a name
def _fetch_once(model: str) -> Path:
    return _fetch_name(parse_model(model), None, weights=True)[1]


def push_folder(folder: Path, name: HubName) -> str:
    """Uploads a model's folder to the Hub; returns the page of the model.

    A new repository is private; an existing one keeps its visibility and gets a new commit.

    Raises:
        InputError: The Hub rejected the files.
    """
    try:
        with _open_hub() as api:
            api.create_repo(name.repo, private=True, exist_ok=True)
            commit = api.upload_folder(
                repo_id=name.repo, folder_path=folder, revision=name.revision
            )
    except Exception as error:  # its text may contain a token
        raise InputError(
            f"{name.text} was not uploaded ({type(error).__name__}); run hf auth login with a "
            "token that may write there, and unset HF_HUB_OFFLINE"
        ) from None
    return commit.repo_url.url


def parse_model(text: str) -> HubName:
    """Parses the name of a model; raises InputError for any other text."""
    try:
        return parse_name_of_kind(text, "model")
    except ValueError as error:
        raise InputError(str(error)) from None


def require_pinned(loaded: LoadedRecipe, what: str) -> None:
    """Raises InputError if a recipe names a branch or tag on the Hub, which may move."""
    for name in _list_names(loaded):
        if not is_commit(name.revision):
            raise InputError(
                f"{name.text}: all runs of {what} must use the same commit; append one to the "
                f"name: {name.repo}@COMMIT"
            )


def write_pins(loaded: LoadedRecipe, folder: Path) -> None:
    """Records the commits of a recipe's Hub names in a run's folder."""
    if loaded.pins and read_pins(folder) != loaded.pins:
        write_whole(
            folder / PINS,
            [json.dumps(dict(loaded.pins), indent=1, sort_keys=True).encode() + b"\n"],
        )


def _list_names(loaded: LoadedRecipe) -> list[HubName]:
    """The Hub names in a recipe."""
    texts = dict.fromkeys(
        text for _, text in list_texts(loaded.dump_options()) if text.startswith(HUB)
    )
    return [name for name in map(parse_name, texts) if name is not None]


def _fetch_name(name: HubName, pin: str | None, weights: bool) -> tuple[str, Path]:
    """Fetches a model or rows, at commit `pin` if given; returns its commit and path.

    If the commit is fully cached, the Hub is not contacted. Error texts of huggingface_hub and its
    HTTP client are not shown: they may contain a token.
    """
    if name.kind == "model":
        patterns = [*_SETTINGS, _WEIGHTS] if weights else _SETTINGS
        folder, files = _download_files(name, pin or name.revision, patterns, "*/*")
        if "config.json" not in files:
            raise InputError(f"{name.text} has no config.json; use a transformers model")
        if _ALONE not in files and _INDEX not in files:
            raise InputError(
                f"{name.text} has no {_ALONE} and no {_INDEX}; use a model with safetensors "
                "weights (pickles are not loaded; merge adapters into their model first)"
            )
        chosen = ""
    elif name.is_split:
        folder, files = _download_files(name, pin or name.revision or _PARQUET, [])
        chosen = _choose_split(name, files)
        _download_files(name, folder.name, [f"{escape(chosen)}/*.parquet"])
    else:
        chosen = name.file or ""
        folder, files = _download_files(name, pin or name.revision, [escape(chosen)])
        if chosen not in files:
            rows = [file for file in files if file.endswith(ROW_FILES)]
            raise InputError(
                f"{name.text} is not a data file; files of that data set: "
                f"{', '.join(rows[:_NAMED]) or 'none'}"
            )
    if pin is None and not is_commit(name.revision):
        print_note(f"{name.text} is commit {folder.name}")
    return folder.name, folder / chosen


def _choose_split(name: HubName, files: Sequence[str]) -> str:
    """Returns the folder of a data set's split, `config/split`."""
    wanted = name.file or "train"
    splits = sorted({file.rpartition("/")[0] for file in files if file.endswith(".parquet")})
    found = [split for split in splits if f"/{split}".endswith(f"/{wanted}")]
    if len(found) != 1:
        raise InputError(
            f"{name.text} is not a data file or a split; write hf:datasets/{name.repo}/SPLIT with "
            f"one of: {', '.join(splits[:_NAMED]) or 'none'}"
        )
    return found[0]


def _download_files(
    name: HubName, revision: str | None, patterns: Sequence[str], ignored: str | None = None
) -> tuple[Path, list[str]]:
    """Downloads the files of a repository that match; returns their folder, and all its files."""
    from huggingface_hub import get_cached_repo_tree

    try:
        with _open_hub() as api:
            folder = Path(
                api.snapshot_download(
                    name.repo,
                    repo_type=name.kind,
                    revision=revision,
                    cache_dir=_find_cache(),
                    allow_patterns=list(patterns),
                    ignore_patterns=ignored,
                )
            )
            tree = get_cached_repo_tree(
                name.repo, repo_type=name.kind, revision=folder.name, cache_dir=_find_cache()
            )
    except Exception as error:
        raise InputError(f"{name.text} {_explain_failure(error)}") from None
    return folder, [file.path for file in tree]


@contextmanager
def _open_hub() -> Iterator[HfApi]:
    """Opens the Hub for requests, unless the user forbids network access.

    Only here may libraries contact it (`process_defaults.stay_offline`). Warnings of
    huggingface_hub are not shown: they quote URLs signed in the user's name.
    """
    from huggingface_hub import HfApi, close_session, constants
    from huggingface_hub import logging as hub_logging

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not may_ask_hub()
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="lockstep")
    finally:
        constants.HF_HUB_OFFLINE = before
        hub_logging.set_verbosity(verbosity)
        close_session()


def _find_cache() -> str | None:
    """The folder of cached Hub files on this machine; None means huggingface_hub's default."""
    folder = os.environ.get("HF_HUB_CACHE")
    if folder is None:
        return None
    return os.path.expandvars(folder)


def _explain_failure(error: Exception) -> str:
    """Explains a failed fetch and how to fix it, from the error's type only."""
    from huggingface_hub import errors

    cause = (isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__) or error
    match cause:
        case errors.GatedRepoError():
            return "is gated; accept the terms on its page, and run hf auth login"
        case errors.RepositoryNotFoundError():
            return (
                "does not exist on the hub, or is private; correct the name, or run hf auth login"
            )
        case errors.RevisionNotFoundError():
            return (
                "has no such revision on the hub; use a branch, a tag or a commit, or, for a data "
                "set without a Parquet copy, name a file"
            )
        case errors.OfflineModeIsEnabled():
            why = "HF_HUB_OFFLINE blocks access to the hub"
        case errors.HfHubHTTPError():
            why = f"the hub returned status {cause.response.status_code}"
        case _:
            why = f"the hub is unreachable ({type(cause).__name__})"
    return (
        f"is incomplete on this machine, and {why}; rerun the command to download the missing files"
    )
