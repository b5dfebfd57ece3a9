"""No files import each other in a circle, imports inside functions and for types counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def list_imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, by module, given their texts."""
    graph: dict[str, set[str]] = {}
    for name, text in texts.items():
        named = list_imported(ast.parse(text))
        found = {module if module in texts else module.rpartition(".")[0] for module in named}
        graph[name] = found & texts.keys() - {name}
    return graph


def test_no_files_import_each_other_in_a_circle() -> None:
    paths = [path for folder in ROOT.glob("lockstep*") for path in folder.rglob("*.py")]
    names = (
        path.relative_to(ROOT).as_posix().removesuffix(".py").removesuffix("/__init__")
        for path in paths
    )
    texts = {
        name.replace("/", "."): path.read_text("utf-8")
        for name, path in zip(names, paths, strict=True)
    }
    assert len(texts) > 500
    TopologicalSorter(import_graph(texts)).prepare()


@pytest.mark.parametrize(
    "text",
    ["import lockstep.b", "def f():\n    from lockstep.b import C", "from lockstep import b"],
)
def test_import_cycle_of_two_modules_is_detected(text: str) -> None:
    with pytest.raises(CycleError):
        TopologicalSorter(
            import_graph({"lockstep.a": text, "lockstep.b": "from lockstep.a import D"})
        ).prepare()
