"""Names on a hub that cannot be had as they are; what is said of them stands in messages.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bad_inputs import BadInput, a_run, own, said
from hub_server import Files, HubServer
from workspace import write

COMMIT = "a" * 40
MODEL: Files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b""}
ROWS: Files = {"train.jsonl": b"{}", "README.md": b""}
Fill = Callable[[HubServer, Path], object]


def of_model(fill: Fill, name: str = "hf:ada/tiny") -> BadInput:
    """Of a model with a name on a hub."""
    return BadInput(f"train own.yaml model.path={name}", hub=fill)


def has(files: Files, name: str = "models/ada/tiny", **changes: object) -> Fill:
    """A hub with a model, or rows, of these files; it differs as said."""

    def fill(hub: HubServer, cache: Path) -> None:
        hub.push(name, files)
        for attribute, value in changes.items():
            setattr(hub, attribute, value)

    return fill


def of_rows(name: str) -> BadInput:
    """Of rows with a name on a hub that has one file of rows."""
    return BadInput(f"train own.yaml data.train={name}", hub=has(ROWS, "datasets/ada/sums"))


def without(name: str, **added: bytes) -> Files:
    """A model's files without one, and with others; `__` stands for a dot."""
    return {file: data for file, data in MODEL.items() if file != name} | {
        file.replace("__", "."): data for file, data in added.items()
    }


def copied(hub: HubServer, cache: Path) -> None:
    """A copy of another program's on this machine, and a hub that is down."""
    hub.code = 451
    folder = cache / "models--ada--tiny/snapshots" / COMMIT
    folder.mkdir(parents=True)
    for file, data in MODEL.items():
        (folder / file).write_bytes(data)


def badly_pinned(folder: Path) -> None:
    """A run's note of commits that names a branch."""
    a_run(folder)
    write("run/hub.json", '{"hf:ada/tiny": "main"}')(folder)


HUB = {
    "hub: no name": said("model.path=hf:tiny"),
    "hub: no name of rows": own(overrides="data.train=hf:ada/sums"),
    "hub: not on this machine": said("model.path=hf:no-owner/tiny"),
    "hub: a copy of another program": of_model(copied, f"hf:ada/tiny@{COMMIT}"),
    "hub: a damaged note of commits": own(badly_pinned, "model.path=hf:ada/tiny"),
    "hub: a sweep without a commit": BadInput(
        "sweep own.yaml model.path=hf:ada/tiny seed=0,1", dry=False
    ),
    "hub: no such model": of_model(lambda hub, cache: None),
    "hub: terms": of_model(has(MODEL, gated={"models/ada/tiny"})),
    "hub: no such revision": of_model(has(MODEL), "hf:ada/tiny@v9"),
    "hub: no config.json": of_model(has(without("config.json"))),
    "hub: weights as pickles": of_model(has(without("model.safetensors", pytorch_model__bin=b""))),
    "hub: no file said": of_rows("hf:datasets/ada/sums"),
    "hub: another file": of_rows("hf:datasets/ada/sums/a.jsonl"),
}
