"""Random edits of Python code: faults that nobody wrote, whose file and line are known."""

from __future__ import annotations

import ast
import gc
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeGuard

_DROPPED = (
    "to",
    "float",
    "transpose",
    "expand",
    "reshape",
    "view",
    "pow",
    "mean",
    "contiguous",
    "repeat_interleave",
)
_OPPOSITE: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_NOT_RUN = ("annotation", "returns", "decorator_list", "type_params")


@dataclass(frozen=True)
class Edit:
    """An edit of one place of a file.

    Attributes:
        file: Its path.
        line: Its number.
        function: The function that it is in, with its class, as Python names it.
        kind: What is done: `constant`, `operator`, `dropped call`, `swapped`, `slice + 1`, `slice -
            1`, `cast`, `skipped`, or `patch`.
        text: The code before.
        node: Place of the node in `ast.walk`; of a patch 0.
        after: The code after a patch.
    """

    file: str
    line: int
    function: str
    kind: str
    text: str
    node: int
    after: str = ""


@cache
def tree_of(file: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def edits_of(file: str) -> list[Edit]:
    """All edits of the functions of a file, but for their annotations and decorators."""
    tree = tree_of(file)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    iterated = {
        id(node.iter) for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)
    }

    def inside(node: ast.AST, name: str, local: bool) -> Iterator[Edit]:
        for child in _children(node):
            within = name
            its_local = local
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                within = (
                    f"{name}.<locals>.{child.name}" if local else f"{name}.{child.name}".lstrip(".")
                )
                its_local = isinstance(child, ast.FunctionDef)
            if name and isinstance(child, ast.expr | ast.Slice):
                kinds = [*kinds_of(child), *["skipped"] * (id(child) in iterated)]
                for kind in kinds:
                    yield Edit(
                        file, child.lineno, name, kind, ast.unparse(child), numbers[id(child)]
                    )
            yield from inside(child, within, its_local)

    return list(inside(tree, "", False))


def patch_of(file: str, before: str, after: str) -> Edit:
    """The edit that puts some code, which is there once, in the place of other code with as many
    lines.

    Raises:
        ValueError: The code before is not there, or more than once, or has another number of lines.
    """
    source = Path(file).read_text(encoding="utf-8")
    if source.count(before) != 1 or before.count("\n") != after.count("\n"):
        raise ValueError(
            f"{file} holds {source.count(before)} times {before!r}, which should be once, in as "
            "many lines"
        )
    line = source[: source.index(before)].count("\n") + 1
    name = list[str]()
    node = tree_of(file)
    last = False
    while found := [one for one in ast.walk(node) if one is not node and _holds(one, line)]:
        node = found[0]
        name += [*["<locals>"] * last, node.name]
        last = isinstance(node, ast.FunctionDef)
    return Edit(file, line, ".".join(name), "patch", before, 0, after)


def _holds(node: ast.AST, line: int) -> TypeGuard[ast.FunctionDef | ast.ClassDef]:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (
        node.end_lineno or 0
    )


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        several = value if isinstance(value, list) else [value]
        yield from (one for one in several if isinstance(one, ast.AST) and name not in _NOT_RUN)


def kinds_of(node: ast.AST) -> Iterator[str]:
    """What can be done to a node."""
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            yield "constant"
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op):
            yield from ["operator", "cast", *["skipped"] * isinstance(op, ast.Add)]
        case ast.Slice():
            yield from ["slice + 1", "slice - 1"]
        case ast.Tuple(elts=[_, _, *_]):
            yield "swapped"
        case ast.Call(func=ast.Attribute(attr=name)) if name in _DROPPED:
            yield from ["dropped call", "cast"]
        case ast.Call(args=[_, *others], keywords=keywords):
            yield from ["dropped call", "cast", *["swapped"] * bool(others or keywords[1:])]
        case ast.Call(keywords=[_, _, *_]):
            yield from ["swapped", "cast"]
        case _:
            pass


def apply(edit: Edit) -> ast.Module:
    """Returns an edited copy of a file's tree; every line keeps its number."""
    if edit.kind == "patch":
        return ast.parse(Path(edit.file).read_text(encoding="utf-8").replace(edit.text, edit.after))
    edited = ast.parse(Path(edit.file).read_text(encoding="utf-8"))
    target = list(ast.walk(edited))[edit.node]

    class _Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return changed(node, edit.kind) if node is target else self.generic_visit(node)

    _Replace().visit(edited)
    return ast.fix_missing_locations(edited)


def changed(node: ast.AST, kind: str) -> ast.AST:
    """An edited node."""
    match kind, node:
        case "constant", ast.Constant(value=int() as value):
            node.value = value + 1
        case "constant", ast.Constant(value=float() as value):
            node.value = 1.1 * value + 0.01
        case "operator", ast.BinOp(op=op):
            node.op = _OPPOSITE[type(op)]()
        case "dropped call", ast.Call(func=ast.Attribute(value=value, attr=name)) if (
            name in _DROPPED
        ):
            return value
        case "dropped call", ast.Call(args=[first, *_]):
            return first
        case "cast", ast.expr():
            return _called(_called(node, "bfloat16"), "float")
        case "skipped", ast.BinOp(left=left):
            return left
        case "skipped", ast.expr():
            every = ast.Call(ast.Name("list", ast.Load()), [node], [])
            return ast.copy_location(
                ast.Subscript(every, ast.Slice(ast.Constant(1)), ast.Load()), node
            )
        case _:
            return _swapped(node) if kind == "swapped" else _moved(node, kind)
    return node


def _called(node: ast.expr, method: str) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Attribute(node, method, ast.Load()), [], []), node)


def _swapped(node: ast.AST) -> ast.AST:
    match node:
        case ast.Tuple(elts=[first, second, *others]):
            node.elts = [second, first, *others]
        case ast.Call(args=[first, second, *others]):
            node.args = [second, first, *others]
        case ast.Call(keywords=[first, second, *_]):
            first.value, second.value = second.value, first.value
        case _:
            pass
    return node


def _moved(node: ast.AST, kind: str) -> ast.AST:
    op = ast.Add() if kind == "slice + 1" else ast.Sub()
    match node:
        case ast.Slice(lower=ast.expr() as lower):
            node.lower = ast.BinOp(lower, op, ast.Constant(1))
        case ast.Slice(upper=ast.expr() as upper):
            node.upper = ast.BinOp(upper, op, ast.Constant(1))
        case ast.Slice() if kind == "slice + 1":
            node.lower = ast.Constant(1)
        case ast.Slice():
            node.upper = ast.Constant(-1)
        case _:
            pass
    return node


def draw(edits: Sequence[Edit], seed: str) -> Iterator[Edit]:
    """Yields all edits in a random order, in which each kind comes as often as the others."""
    chance = random.Random(seed)
    by_kind: dict[str, list[Edit]] = {}
    for edit in chance.sample(edits, len(edits)):
        by_kind.setdefault(edit.kind, []).append(edit)
    while by_kind:
        kind = chance.choice(sorted(by_kind))
        yield by_kind[kind].pop()
        if not by_kind[kind]:
            del by_kind[kind]


def lines_of(edit: Edit) -> range:
    """The lines of the smallest statement that holds an edit: Python says of a call where it
    begins.
    """
    around = [
        node
        for node in ast.walk(tree_of(edit.file))
        if isinstance(node, ast.stmt)
        and node.lineno <= edit.line <= (node.end_lineno or node.lineno)
    ]
    smallest = min(around, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
    return range(smallest.lineno, (smallest.end_lineno or smallest.lineno) + 1)


@dataclass(frozen=True)
class Swap:
    """The functions of this process that hold an edit, with their code before and after it.

    Attributes:
        functions: They are alive.
        before: The code of each.
        after: The same with the edit.
    """

    functions: Sequence[FunctionType]
    before: Sequence[CodeType]
    after: Sequence[CodeType]

    @classmethod
    def of(cls, edit: Edit) -> Swap:
        """Finds the functions of an edit.

        Raises:
            ValueError: None that is alive holds it.
        """
        outer = edit.function.split(".<locals>", 1)[0]
        code = next(
            one
            for one in _codes_of(compile(apply(edit), edit.file, "exec"))
            if one.co_qualname == outer
        )
        alive = [one for one in find_functions(edit.file) if one.__code__.co_qualname == outer]
        if not alive:
            raise ValueError(f"no function {outer} of {edit.file} is alive")
        return cls(alive, [one.__code__ for one in alive], [code] * len(alive))

    @contextmanager
    def running(self, codes: Sequence[CodeType]) -> Iterator[None]:
        """In the block, the functions run `before` or `after`; the lines that do so are the same
        for both.

        Raises:
            ValueError: An edited function needs other variables from outside.
        """
        try:
            for one, code in zip(self.functions, codes, strict=True):
                one.__code__ = code
            yield
        finally:
            for one, code in zip(self.functions, self.before, strict=True):
                one.__code__ = code


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes_of(one)


@cache
def find_functions(file: str) -> list[FunctionType]:
    """The functions of a file that are alive in this process when it is first asked about."""
    return [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType and one.__code__.co_filename == file
    ]


def seed_of_commit() -> str:
    """The commit that is checked out: each one draws other faults."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return asked.stdout.strip()[:12]
