"""Models and data files by their names on the Hugging Face Hub: resolved to a commit once, fetched, and noted.

A command does it before it starts anything else, so that all its processes read local files. Of a model only
configuration, tokenizer and safetensors are fetched: nothing is unpickled, and no code of a repository runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from lockstep.config.hub_copies import (
    ALONE,
    INDEX,
    ModelFiles,
    cache_folder,
    find_copy,
    find_doubtful,
    find_noted,
    list_weights,
    note_commit,
    note_files,
    seems_whole,
    split,
)
from lockstep.config.hub_name import PINS, HubName, HubPaths, is_commit, parse_model, read_pins
from lockstep.config.loading import Loaded
from lockstep.config.model_recipe import weights_of
from lockstep.errors import InputError
from lockstep.paths import HUB
from lockstep.printable import print_text
from lockstep.process_defaults import may_ask_hub
from lockstep.units import readable
from lockstep.whole_files import write_whole

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo

_BESIDE = re.compile(r"[\w.-]+\.(json|txt|model|jinja)")
"""Files of a model's top folder that are fetched besides its weights."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TIMEOUT_S = 10.0
_NAMED = 8
"""Number of a data set's files that a message names."""


@dataclass(frozen=True)
class _Found:
    """A name's commit and its place on this machine.

    Attributes:
        commit: Its commit.
        path: Its folder or file on this machine.
    """

    commit: str
    path: str


def fetch_names(loaded: Loaded, weights: bool = True) -> Loaded:
    """Fetches what a recipe names on the hub, and returns the recipe with local paths in place of the names.

    Args:
        loaded: The recipe. Its names keep the commits that its run's folder notes, or `loaded.pins`.
        weights: Also fetch the weights of models; else a line says how large they are.

    Raises:
        InputError: There is no such model or file, it has no safetensors, or it is not here and cannot be fetched.
    """
    names = _names(loaded)
    if not names:
        return loaded
    pins = {**loaded.pins, **read_pins(loaded.run_folder)}
    found = {text: _fetch(name, pins.get(text), weights) for text, name in names.items()}
    places = {text: own.path for text, own in found.items()}
    options = json.dumps(loaded.dump())
    recipe = type(loaded.recipe).model_validate_json(options, strict=True, context=HubPaths(places))
    return replace(loaded, recipe=recipe, places=places, pins=pins | {text: own.commit for text, own in found.items()})


def fetch_model(model: str) -> Path:
    """The folder of a model: `model` itself, `final/` if that is a run, or the fetched copy of a name on the hub."""
    return _fetch_once(model) if model.startswith(HUB) else weights_of(model)


@cache  # so that a learner and a sampler of one name are of one commit
def _fetch_once(model: str) -> Path:
    try:
        name = parse_model(model)
    except ValueError as error:
        raise InputError(str(error)) from None
    return Path(_fetch(name, None, weights=True).path)


def require_pinned(loaded: Loaded, what: str) -> None:
    """Raises InputError where a recipe names something on the hub by a branch or tag, which may move."""
    for name in _names(loaded).values():
        if not name.is_pinned:
            example = name.text.replace(f"@{name.revision}", "").replace(name.repo, f"{name.repo}@COMMIT", 1)
            raise InputError(f"{name.text}: all runs of {what} need the same; name its commit: {example}")


def write_pins(loaded: Loaded, folder: Path) -> None:
    """Notes the commits of a recipe's names in a run's folder."""
    if loaded.pins and read_pins(folder) != loaded.pins:
        write_whole(folder / PINS, [json.dumps(dict(loaded.pins), indent=1, sort_keys=True).encode() + b"\n"])


def _names(loaded: Loaded) -> Mapping[str, HubName]:
    """The names on the hub that a recipe has."""
    options = json.dumps(loaded.dump())
    if f'"{HUB}' not in options:
        return {}
    places = HubPaths()
    type(loaded.recipe).model_validate_json(options, strict=True, context=places)
    return places.seen


def _fetch(name: HubName, pin: str | None, weights: bool) -> _Found:
    """Fetches what a name stands for, at commit `pin` if given; for a commit that is here whole, the hub is not asked.

    Texts of errors of huggingface_hub and its HTTP client are not shown: they may hold a token.
    """
    from huggingface_hub import ModelInfo

    revision = pin or name.revision
    if revision is not None and is_commit(revision) and (copy := find_noted(name, revision)) is not None:
        return _Found(revision, str(copy))
    with _open_hub() as api:
        try:
            info = _ask(api, name, revision)
        except Exception as error:
            return _without_hub(name, revision, error, weights)
        commit = _read_commit(name, revision, info.sha)
        try:
            if isinstance(info, ModelInfo):
                path = _fetch_model(api, name, info, commit, weights)
            else:
                path = _fetch_rows(api, name, info, commit)
        except InputError:
            raise
        except Exception as error:
            why = (isinstance(error, OSError) and error.strerror) or _reason(error)
            raise InputError(f"{name.text} was not fetched: {why}; the same command resumes that") from None
    if pin is None and not name.is_pinned:
        _say(f"{name.text} is commit {commit}")
        note_commit(path, name.revision or "main")
    return _Found(commit, str(path))


def _ask(api: HfApi, name: HubName, revision: str | None) -> ModelInfo | DatasetInfo:
    """Asks the hub for the commit of a name, and for its files."""
    match name.kind:
        case "model":
            return api.model_info(name.repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
        case "dataset":
            return api.dataset_info(name.repo, revision=revision, timeout=_TIMEOUT_S)
        case _:
            assert_never(name.kind)


def _read_commit(name: HubName, revision: str | None, said: str | None) -> str:
    """The commit in the hub's answer; raises InputError where it is no commit, or not the one asked for."""
    if said is None or not is_commit(said):
        raise InputError(f"{name.text}: the hub's answer names no commit; correct HF_ENDPOINT, or ask again later")
    if revision is not None and is_commit(revision) and said != revision:
        raise InputError(
            f"{name.text}: the hub was asked for the commit {revision} and answered with {said}; correct HF_ENDPOINT, "
            "or ask again later"
        )
    return said


@contextmanager
def _open_hub() -> Iterator[HfApi]:
    """Opens the hub; only here libraries may ask it (`process_defaults.stay_offline`), unless the user forbids it.

    Warnings of huggingface_hub are not shown: they quote addresses that are signed in the user's name.
    """
    from huggingface_hub import HfApi, close_session, constants
    from huggingface_hub import logging as hub_logging

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, not may_ask_hub()
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="lockstep")
    finally:
        constants.HF_HUB_OFFLINE = before
        hub_logging.set_verbosity(verbosity)
        close_session()


def _fetch_model(api: HfApi, name: HubName, info: ModelInfo, commit: str, weights: bool) -> Path:
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    beside = tuple(file for file in sizes if _BESIDE.fullmatch(file))
    _require_weights(name, sizes)
    _download(api, name, beside, commit)
    config = find_copy(name, "config.json", commit)
    if config is None:
        raise InputError(f"{name.text} has no config.json, so it is no model of transformers; name one that is")
    folder = config.parent
    files = ModelFiles(beside, list_weights(folder))
    absent = next((file for file in files.weights if file not in sizes), None)
    if absent is not None:
        raise InputError(f"{name.text} has no {absent}, which its {INDEX} names; name a model with all its weights")
    left = sum(sizes[file] for file in files.weights if find_copy(name, file, commit) is None)
    if weights:
        if left:
            _say(f"fetching the weights of {name.text}: {readable(left)}")
        _download(api, name, files.weights, commit)
    elif left:
        _say(f"{name.text}: {readable(left)} of weights are not on this machine yet; lockstep train fetches them")
    note_files(folder, files)
    return folder


def _download(api: HfApi, name: HubName, files: Iterable[str], commit: str) -> None:
    for file in files:
        api.hf_hub_download(name.repo, file, repo_type=name.kind, revision=commit, cache_dir=cache_folder())


def _require_weights(name: HubName, files: Mapping[str, int]) -> None:
    """Raises InputError where a repository has no safetensors of a whole model."""
    if ALONE in files or INDEX in files:
        return
    pickled = next((file for file in files if file.endswith(_PICKLES)), None)
    if pickled is not None:
        raise InputError(
            f"{name.text} has its weights as pickles only ({pickled}), which may run code when they are opened; name a "
            "model with safetensors"
        )
    if "adapter_config.json" in files:
        raise InputError(f"{name.text} holds adapters only; merge them into their model with peft, and name the result")
    raise InputError(f"{name.text} has no {ALONE} and no {INDEX}; name a model with its weights in that format")


def _fetch_rows(api: HfApi, name: HubName, info: DatasetInfo, commit: str) -> Path:
    from huggingface_hub.hf_api import RepoFile

    files = [file.rfilename for file in info.siblings or ()]
    if name.file is None or name.file not in files:
        rows = [file for file in files if file.endswith((".jsonl", ".jsonl.gz", ".json", ".parquet"))]
        shown = ", ".join(rows[:_NAMED]) + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")
        what = "says no file" if name.file is None else f"has no file {name.file}"
        raise InputError(f"{name.text} {what}; files of rows there are: {shown or 'none'}")
    if find_copy(name, name.file, commit) is None:
        entries = api.get_paths_info(name.repo, [name.file], revision=commit, repo_type="dataset")
        size = sum(entry.size for entry in entries if isinstance(entry, RepoFile))
        _say(f"fetching {name.text}: {readable(size)}")
    _download(api, name, [name.file], commit)
    path = find_copy(name, name.file, commit)
    assert path is not None, "it has just been fetched"
    return path


def _without_hub(name: HubName, revision: str | None, error: Exception, weights: bool) -> _Found:
    """Finds this machine's copy of a name where the hub gives nothing; raises InputError where there is none."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    match error:
        case GatedRepoError():
            raise InputError(
                f"{name.text} is given to those alone who accept its terms; do so on its page, and say hf auth login"
            ) from None
        case RepositoryNotFoundError():
            raise InputError(
                f"{name.text}: the hub shows no such {name.kind} to you; correct the name, or say hf auth login"
            ) from None
        case RevisionNotFoundError():
            raise InputError(
                f"{name.text}: the hub has no revision {revision}; name a branch, a tag or a commit"
            ) from None
        case _:
            pass
    path = find_copy(name, name.file or "config.json", revision)
    why = _reason(error)
    if path is None or (name.kind == "model" and not seems_whole(path.parent, weights)):
        raise InputError(
            f"{name.text} is not on this machine, and {why}; fetch it where there is a network, or name what is here"
        ) from None
    doubtful = find_doubtful(name, path.parent) if name.kind == "model" else None
    if doubtful is not None:
        raise InputError(
            f"{name.text}: this machine's copy has no {doubtful}, which the model may have, and {why}; fetch it where "
            f"there is a network, or, if it is whole, name its folder: {path.parent}"
        ) from None
    commit = split(path)[1]
    _say(f"{name.text}: {why}; this machine's copy is used, commit {commit}")
    return _Found(commit, str(path if name.file else path.parent))


def _reason(error: Exception) -> str:
    """Says why the hub gave nothing, by the error's kind alone."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    match error:
        case LocalEntryNotFoundError(__cause__=Exception() as cause):
            return _reason(cause)
        case OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE keeps the hub from being asked"
        case HfHubHTTPError():
            return f"the hub answered with the code {error.response.status_code}"
        case _:
            return f"the hub could not be read ({type(error).__name__})"


def _say(text: str) -> None:
    print_text(f"note: {text}", file=sys.stderr)
