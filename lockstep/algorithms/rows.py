"""The rows of a run: its data files, opened as prompts, demonstrations or pairs."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.config.task import Task, TaskFiles
from lockstep.config.user_code import describe_error
from lockstep.core.errors import InputError, LockstepError
from lockstep.data.demonstrations import Demonstrations
from lockstep.data.files import FileGroup, open_rows
from lockstep.data.pair_options import PairSection
from lockstep.data.pairs import Pairs
from lockstep.data.prompts import Prompts
from lockstep.data.selection import ANY_ROW, Rule
from lockstep.models.source import ModelSource


@dataclass(frozen=True)
class DataFiles:
    """Files of rows: training prompts, demonstrations (the same files, unless the data is made),
    validation rows.

    A toy task may also write judgements, and comparisons of judgements, with known right answers.
    """

    train: FileGroup
    demonstrations: FileGroup
    validation: FileGroup | None
    judgements: FileGroup | None = None
    comparisons: FileGroup | None = None

    def digests(self) -> dict[str, str]:
        """A digest of the files' content, by their use; read from the rows' index."""
        names = {
            self.validation: "validation",
            self.demonstrations: "demonstrations",
            self.train: "train",
        }
        return {
            name: open_rows(files, "skip").digest[:16]
            for files, name in names.items()
            if files is not None
        }


def data_files(section: DataSection, folder: Path) -> DataFiles:
    """Returns the recipe's data files; the task of `data.task` writes them first."""
    if section.task is None:
        assert section.train is not None, "a recipe names data or makes it"
        train = files_of(section.train, section.weights)
        return DataFiles(
            train, train, None if section.validation is None else files_of(section.validation)
        )
    made = _make(section.task, folder / "data")
    judgements, comparisons = (
        None if file is None else FileGroup((file,)) for file in (made.judgements, made.comparisons)
    )
    imitated = FileGroup((made.demonstrations or made.train,))
    return DataFiles(
        FileGroup((made.train,)), imitated, FileGroup((made.validation,)), judgements, comparisons
    )


def _make(task: Task, folder: Path) -> TaskFiles:
    """Has a task write its files; raises InputError if a user's task fails or leaves a file out."""
    named = f"data.task {task.name}"
    try:
        made = task.write(folder)
    except (LockstepError, OSError):
        raise
    except Exception as error:  # the user's class may raise anything
        raise InputError(f"{named} {describe_error(error)}") from error
    if not isinstance(made, TaskFiles):
        raise InputError(f"{named} returned a {type(made).__name__} from write; return TaskFiles")
    missing = [file for file in astuple(made) if file is not None and not file.is_file()]
    if missing:
        raise InputError(f"{named} did not write {missing[0].name}, which its TaskFiles name")
    return made


def files_of(paths: str | tuple[str, ...], weights: tuple[float, ...] | None = None) -> FileGroup:
    """Files as a recipe lists them."""
    return FileGroup(tuple(map(Path, (paths,) if isinstance(paths, str) else paths)), weights)


def open_prompts(
    files: FileGroup, section: DataSection, tokenizer: PreTrainedTokenizerBase, rule: Rule = ANY_ROW
) -> Prompts:
    """Opens files of rows as prompts; `rule` is what the reward requires of them."""
    return Prompts(open_rows(files, section.bad_rows), tokenizer, section, rule)


def open_demonstrations(
    files: FileGroup,
    data: DataSection,
    source: ModelSource,
    longest: int,
    limit: str,
    rule: Rule = ANY_ROW,
) -> Demonstrations:
    """Opens files of rows as demonstrations of at most `longest` tokens; `limit` names the option
    that says so.
    """
    rows = open_rows(files, data.bad_rows)
    return Demonstrations(rows, source.tokenizer, data, longest, source.stop_token_ids, rule, limit)


def open_pairs(
    files: FileGroup, data: PairSection, source: ModelSource, longest: int, limit: str
) -> Pairs:
    """Opens files of rows as pairs of at most `longest` tokens; `limit` names the option that says
    so.
    """
    rows = open_rows(files, data.bad_rows)
    return Pairs(rows, source.tokenizer, data, longest, source.stop_token_ids, limit=limit)
