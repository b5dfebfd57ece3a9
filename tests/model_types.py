"""Where a program decides by the `model_type` of a configuration: it compares it, matches it or
looks it up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def decisions_by_model_type(tree: ast.Module) -> Iterator[int]:
    """Lines of a file; a message that prints the type is no decision, nor is asking whether there
    is one.
    """
    names = _names_of_model_types(tree)
    for node in ast.walk(tree):
        yield from _lines_that_decide(node, names)


def _names_of_model_types(tree: ast.Module) -> set[str]:
    """`model_type`, and what the file calls a value that it took from there."""
    names = {"model_type"}
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ):
                pairs: list[tuple[str, ast.expr]] = [(name, value)]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = [
                    (to.id, value)
                    for to, value in zip(targets, values, strict=False)
                    if isinstance(to, ast.Name)
                ]
            case _:
                continue
        names.update(name for name, value in pairs if _is_model_type(value, names))
    return names


def _is_model_type(node: ast.expr | None, names: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in names
        case (
            ast.Attribute(attr="model_type") | ast.Subscript(slice=ast.Constant(value="model_type"))
        ):
            return True
        case ast.Call(
            func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value="model_type"), *_]
        ):
            return True
        case _:
            return False


def _lines_that_decide(node: ast.AST, names: set[str]) -> Iterator[int]:
    """Where a model type is compared (but with None), matched, looked up in a table, or asked for a
    part of it.
    """
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            against_none = all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
            asked = [] if against_none else [left, *others]
        case (
            ast.Match(subject=value)
            | ast.Subscript(slice=value)
            | ast.Attribute(value=value)
            | ast.Call(func=ast.Attribute(attr="get"), args=[value, *_])
        ):
            asked = [value]
        case _:
            asked = []
    yield from (value.lineno for value in asked if _is_model_type(value, names))
