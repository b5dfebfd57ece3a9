"""The rows of a run: its data files, opened as prompts, demonstrations or pairs."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.config.task import TaskFiles
from lockstep.config.user_code import describe_error
from lockstep.core.errors import InputError, LockstepError
from lockstep.data.demonstrations import DemonstrationRows
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.pair_options import PairSection
from lockstep.data.pairs import PairRows, SplitPairs
from lockstep.data.prompts import PromptRows
from lockstep.data.selection import ANY_ROW, RowRule
from lockstep.models.source import ModelSource


@dataclass(frozen=True)
class DataFiles:
    """Data files: training prompts, demonstrations and validation rows.

    Demonstrations are the same files as the prompts, unless a task writes the data. A toy task may
    also write judgments, and comparisons of judgments, with known right answers.
    """

    train: FileGroup
    demonstrations: FileGroup
    validation: FileGroup | None
    judgments: FileGroup | None = None
    comparisons: FileGroup | None = None

    def read_digests(self) -> dict[str, str]:
        """Digests of the files' content by their use, read from the index."""
        names = {
            self.validation: "validation",
            self.demonstrations: "demonstrations",
            self.train: "train",
        }
        found: dict[str, str] = {}
        for files, name in names.items():
            if files is not None:
                found[name] = open_rows(files, "skip").digest[:16]
        return found


def data_files(section: DataSection, folder: Path) -> DataFiles:
    """Returns the recipe's data files; if `data.task` is set, the task writes them first."""
    if section.task is None:
        assert section.train is not None, "a recipe names data or makes it"
        train = group_files(section.train, section.weights)
        validation = None
        if isinstance(section.validation, str | tuple):
            validation = group_files(section.validation)
        elif section.validation is not None:
            validation = replace(train, weights=None, share=(0.0, section.validation))
            train = replace(train, share=(section.validation, 1.0))
        return DataFiles(train, train, validation)
    named = f"data.task {section.task.name}"
    try:
        made = section.task.write(folder / "data")
    except (LockstepError, OSError):
        raise
    except Exception as error:  # the user's class may raise anything
        raise InputError(f"{named} {describe_error(error)}") from error
    if not isinstance(made, TaskFiles):
        raise InputError(f"{named} returned a {type(made).__name__} from write; return TaskFiles")
    missing = [file for file in astuple(made) if file is not None and not file.is_file()]
    if missing:
        raise InputError(f"{named} did not write {missing[0].name} listed in its TaskFiles")
    judgments, comparisons = (
        None if file is None else FileGroup((file,)) for file in (made.judgments, made.comparisons)
    )
    imitated = FileGroup((made.demonstrations or made.train,))
    return DataFiles(
        FileGroup((made.train,)), imitated, FileGroup((made.validation,)), judgments, comparisons
    )


def group_files(
    paths: str | tuple[str, ...], weights: tuple[float, ...] | None = None
) -> FileGroup:
    """Groups the files that a recipe lists, with their weights."""
    return FileGroup(tuple(map(Path, (paths,) if isinstance(paths, str) else paths)), weights)


def open_prompts(
    files: FileGroup,
    section: DataSection,
    tokenizer: PreTrainedTokenizerBase,
    rule: RowRule = ANY_ROW,
) -> PromptRows:
    """Opens files as prompts; `rule` is the reward's requirement on rows."""
    return PromptRows(open_rows(files, section.bad_rows), tokenizer, section, rule)


def open_demonstrations(
    files: FileGroup,
    data: DataSection,
    source: ModelSource,
    longest: int,
    limit: str,
    rule: RowRule = ANY_ROW,
    kind: type[DemonstrationRows] = DemonstrationRows,
) -> DemonstrationRows:
    """Opens files as demonstrations of at most `longest` tokens, set by the option `limit`."""
    rows = open_rows(files, data.bad_rows)
    return kind(rows, source.tokenizer, data, longest, source.stop_token_ids, rule, limit)


def open_pairs(
    files: FileGroup, data: PairSection, source: ModelSource, longest: int, limit: str
) -> PairRows:
    """Opens files as pairs of at most `longest` tokens, set by the option `limit`.

    Without a prompt, both answers begin with it.
    """
    rows = open_rows(files, data.bad_rows)
    if data.messages is None and not data.prompt:
        rows = SplitPairs(rows)
        data = data.model_copy(update={"prompt": "{prompt}"})
    return PairRows(rows, source.tokenizer, data, longest, source.stop_token_ids, limit=limit)
