"""Checks that a commit only moved code: each renamed Python file has its old syntax tree, but for
names of modules.

`python -m benchmarks.same_code COMMIT` exits with 1 and names each file that differs otherwise.
Imports are left out of the comparison, and so are strings that name a module or a path of the
package.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator

_NAME = re.compile(r"\blockstep([./]\w+)+(\.py\b|/)?")


class _Leveled(ast.NodeTransformer):
    """Removes imports, and texts that name a module or a path of the package."""

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        value = node.value
        return ast.Constant(
            " ".join(_NAME.sub("MODULE", value).split()) if isinstance(value, str) else value
        )


def level(text: str) -> str:
    """The syntax tree of a file without the parts that a move may change."""
    return ast.dump(_Leveled().visit(ast.parse(text)))


def renamed(commit: str) -> Iterator[tuple[str, str]]:
    """Old and new path of each Python file that a commit has renamed or changed."""
    command = ["git", "diff", "--name-status", "-M40", f"{commit}~1", commit, "--", "*.py"]
    for line in subprocess.check_output(command, text=True).splitlines():
        kind, *paths = line.split("\t")
        if kind[0] in "RM":
            yield paths[0], paths[-1]


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Says whether a commit only moved code.")
    parser.add_argument("commit")
    commit = parser.parse_args().commit
    pairs = list(renamed(commit))
    read = {
        (revision, path): subprocess.check_output(["git", "show", f"{revision}:{path}"], text=True)
        for old, new in pairs
        for revision, path in ((f"{commit}~1", old), (commit, new))
    }
    other = [
        new for old, new in pairs if level(read[f"{commit}~1", old]) != level(read[commit, new])
    ]
    print(
        "\n".join(
            [
                *other,
                f"{len(pairs)} files, of which {len(other)} differ by more than names of modules",
            ]
        )
    )
    return int(bool(other))


if __name__ == "__main__":
    sys.exit(main())
