"""The names that a test uses, which decide what each of them means: something of Python's, or of the program's.

They depend on the test alone, so a program cannot change what its test means: `sorted` in a test is Python's, even
where the program defines one. A test that uses only names of Python's built-ins is about a function of the program that
has such a name. The name of a standard module means the module, where it has the attributes that the test uses.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TypedDict


class Uses(TypedDict):
    """The names that a test uses, and does not define itself.

    Attributes:
        python: Names of Python's built-ins.
        about_python: True if it uses no others.
        modules: Names of modules of the standard library, with the attributes of them that it uses.
    """

    python: list[str]
    about_python: bool
    modules: dict[str, list[str]]


def find_uses(test: str) -> Uses:
    """Reads a test, which is Python."""
    nodes = list(ast.walk(ast.parse(test)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {
        name for node in nodes for name in _list_definitions(node)
    }
    used = {node.id for node in names} - own
    python = used & vars(builtins).keys()
    modules: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in used & sys.stdlib_module_names:
                modules.setdefault(name, []).append(node.attr)
    return {"python": sorted(python), "about_python": used == python, "modules": modules}


def _list_definitions(node: ast.AST) -> list[str]:
    """Names that a part of a program defines by other means than an assignment."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.arg(arg=name):
            return [name]
        case ast.alias():
            return [(node.asname or node.name).partition(".")[0]]
        case _:
            return []
