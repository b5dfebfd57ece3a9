"""Hostile inputs: how each is made, from a folder of `workspace.furnish`, and the words that a good
answer has.

They are what people download, mistype and cut short, beyond the catalogue of `tests/commands`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workspace import Spoil, change, write

LINE_1 = "rows.jsonl, line 1"
SFT, DPO = "train sft.yaml", "train dpo.yaml"
CONFIG, WEIGHTS, INDEX = (
    "model/config.json",
    "model/model.safetensors",
    "model/model.safetensors.index.json",
)
TOKENIZER, TOKENIZER_CONFIG = "model/tokenizer.json", "model/tokenizer_config.json"
GENERATION = "model/generation_config.json"
DEEP = "[" * 100_000 + "]" * 100_000
PYTHON_REWARD = "reward.type=python reward.marker=null reward.function"


@dataclass(frozen=True)
class Hostile:
    """One input.

    Attributes:
        command: Arguments of `lockstep`.
        spoil: Makes the input.
        says: Parts of the one sentence; of the notes, where the command continues.
        accepted: True for what looks wrong, and is in order.
    """

    command: str | Sequence[str]
    spoil: Spoil | None
    says: tuple[str, ...]
    accepted: bool = False


def in_order(one: Hostile) -> Hostile:
    """What looks wrong, and is in order."""
    return replace(one, accepted=True)


def both(*spoils: Spoil) -> Spoil:
    return lambda folder: [spoil(folder) for spoil in spoils]


def pipe(name: str) -> Spoil:
    return lambda folder: [(folder / name).unlink(missing_ok=True), os.mkfifo(folder / name)]


def edit(name: str, alter: Callable[[dict[str, Any]], object]) -> Spoil:
    """Alters a JSON object in a file."""

    def spoil(folder: Path) -> None:
        tree = json.loads((folder / name).read_text())
        alter(tree)
        (folder / name).write_text(json.dumps(tree))

    return spoil


def recipe(text: str | bytes, *says: str) -> Hostile:
    """A recipe of the user's."""
    return Hostile("train bad.yaml --dry-run", write("bad.yaml", text), says)


def tiny(text: str, *says: str) -> Hostile:
    """The same, with a base."""
    return recipe(f"base: tiny.yaml\n{text}", *says)


def algorithm(code: str, *says: str) -> Hostile:
    """An algorithm of the user's."""
    spoil = both(
        write("bad.yaml", 'base: tiny.yaml\nalgorithm: "mine.py:Mine"\n'), write("mine.py", code)
    )
    return Hostile("train bad.yaml --dry-run", spoil, says)


def task(code: str, *says: str) -> Hostile:
    """A task of the user's."""
    named = write("bad.yaml", 'base: tiny.yaml\ndata: {task: {name: "mine.py:Mine"}}\n')
    return Hostile("train bad.yaml --dry-run", both(named, write("mine.py", code)), says)


def scratch(fields: dict[str, Any], *says: str) -> Hostile:
    """Fields of a new model."""
    return tiny(f"model: {{scratch: {{config: {json.dumps(fields)}}}}}\n", *says)


def override(words: str | Sequence[str], *says: str, of: str = "tiny.yaml") -> Hostile:
    words = [words] if isinstance(words, str) else words
    return Hostile(["train", of, *words, "--dry-run"], None, says)


def rows(
    content: str | bytes,
    *says: str,
    of: str = "train own.yaml",
    options: str = "",
    also: Spoil = str,
) -> Hostile:
    """The rows of a run."""
    return Hostile(f"{of} {options} --dry-run", both(write("rows.jsonl", content), also), says)


def replaced(make: Callable[[Path], object], *says: str) -> Hostile:
    """Something else in place of the file of rows."""
    return Hostile(
        "train own.yaml --dry-run",
        lambda folder: [(folder / "rows.jsonl").unlink(), make(folder / "rows.jsonl")],
        says,
    )


def other(file: str, content: str | bytes, *says: str) -> Hostile:
    """A file of rows of another name."""
    return Hostile(f"train own.yaml data.train={file} --dry-run", write(file, content), says)


def table(columns: Callable[[Any], dict[str, Any]], *says: str) -> Hostile:
    """A file of Parquet, given its columns by the library `pyarrow`."""

    def spoil(folder: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns(pyarrow)), folder / "r.parquet")

    return Hostile("train own.yaml data.train=r.parquet --dry-run", spoil, says)


def talk(messages: object, *says: str) -> Hostile:
    """A conversation to imitate."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    content = (json.dumps({"talk": messages}) + "\n") * 24
    also = write("model/chat_template.jinja", template)
    return rows(content, *says, of=SFT, options="data.messages=talk", also=also)


def pair(fields: dict[str, Any], *says: str, options: str = "") -> Hostile:
    """A pair of answers, `c` and `r`."""
    content = json.dumps({"question": "1+1=", "answer": "2", **fields}) + "\n"
    named = """dpo.global_batch_size=1 data.chosen='"{c}"' data.rejected='"{r}"'"""
    return rows(content, *says, of=DPO, options=f"{named} {options}")


def score(chosen: str, rejected: str, *says: str) -> Hostile:
    """Scores of a pair, as JSON writes them."""
    named = """dpo.global_batch_size=1 data.chosen='"{c}"' data.rejected='"{r}"'"""
    named += " data.chosen_score=cs data.rejected_score=rs dpo.preference_loss=rpo_bwd_kl"
    content = f'{{"question": "1+1=", "c": "2", "r": "3", "cs": {chosen}, "rs": {rejected}}}\n'
    return rows(content, *says, of=DPO, options=named)


def known(content: str, *says: str, kind: str = "judgments") -> Hostile:
    """Judgments that are known."""
    return Hostile(
        f"train judged.yaml known.{kind}=known.jsonl --dry-run", write("known.jsonl", content), says
    )


def ranked(content: str, *says: str) -> Hostile:
    """Responses that people have ranked."""
    judge = """judge.chat=false judge.template='"{prompt} {response}"' judge.max_prompt_tokens=40"""
    judge += " judge.sampling.max_tokens=1 judge.unfinished_judgments=read"
    named = """data.prompt='"{p}"' data.responses=responses data.ranks=ranks"""
    return Hostile(
        f"eval model ranked.jsonl --recipe eval_judge {judge} {named}",
        write("ranked.jsonl", content),
        says,
    )


def model(spoil: Spoil, *says: str, options: str = "") -> Hostile:
    """The model of a dry run."""
    return Hostile(f"train own.yaml {options} --dry-run", spoil, says)


def trained(spoil: Spoil, *says: str) -> Hostile:
    """The model of a short run, for what a dry run cannot see."""
    return Hostile(SFT, spoil, says)


def config(fields: dict[str, Any], *says: str) -> Hostile:
    return model(edit(CONFIG, lambda tree: tree.update(fields)), *says)


def trained_config(fields: dict[str, Any], *says: str) -> Hostile:
    return trained(edit(CONFIG, lambda tree: tree.update(fields)), *says)


def index(tree: object, *says: str) -> Hostile:
    return model(write(INDEX, tree if isinstance(tree, str) else json.dumps(tree)), *says)


def chat(template: object, *says: str) -> Hostile:
    """A chat template."""
    named = isinstance(template, str)
    spoil = (
        write("model/chat_template.jinja", template)
        if named
        else change(TOKENIZER_CONFIG, chat_template=template)
    )
    return model(spoil, *says, options="data.chat=true")


def generation(fields: object, *says: str) -> Hostile:
    return trained(
        write(GENERATION, fields if isinstance(fields, str) else json.dumps(fields)), *says
    )


def reward(code: str | bytes, *says: str, name: str = "mine.py:f", options: str = "") -> Hostile:
    """A reward function of the user's."""
    return Hostile(f"train own.yaml {PYTHON_REWARD}={name} {options}", write("mine.py", code), says)
