"""Judges that reward responses, as a run shows them: how often they were asked, and how far they agree with people."""

from __future__ import annotations

from pathlib import Path

from lockstep.judge.remembered import count_asked
from lockstep.report.judge_table import read_judging

_FOLDER, _REPLIES, _AGREEMENT = "judges", "replies.jsonl", "agreement.json"


def replies_file(key: str) -> str:
    """The file of a judge's replies in a run's folder, by the key of its section."""
    return f"{_FOLDER}/{key}.{_REPLIES}"


def agreement_file(key: str) -> str:
    """The file with a judge's agreement with people, likewise."""
    return f"{_FOLDER}/{key}.{_AGREEMENT}"


def describe_judges(folder: Path) -> list[str]:
    """A sentence on each judge that was asked for rewards, and one on its agreement with people where it is known."""
    found: list[str] = []
    for file in sorted((folder / _FOLDER).glob(f"*.{_REPLIES}")):
        key = file.name.removesuffix(f".{_REPLIES}")
        questions, asked = count_asked(file)
        others = "the others were answered before" if asked < questions else "none was answered before"
        found.append(f"{key}: {asked} of {questions} questions were asked, {others}")
    for file in sorted((folder / _FOLDER).glob(f"*.{_AGREEMENT}")):
        found.append(f"{file.name.removesuffix(f'.{_AGREEMENT}')}: {read_judging(file).sentence}")
    return found
