"""Files that the documentation names are there; LOG.md and CHANGELOG.md, which tell of what was,
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from floors import FLOORS

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for folder in (".", "docs", "docs/*", "benchmarks", "benchmarks/*", "examples")
    for page in sorted(ROOT.glob(f"{folder}/*.md"))
    if page.name not in ("LOG.md", "CHANGELOG.md")
]
BELOW_ROOT = re.compile(
    r"(?<![\w/.-])((?:lockstep|lockstep_logprobs|tests|docs|benchmarks|examples|\.ci)/[\w./*-]*[\w/*])"
)
PARTS = "|".join(path.name for path in (ROOT / "lockstep").iterdir() if path.is_dir())
BELOW_PACKAGE = re.compile(rf"`((?:{PARTS})/[\w/]*(?:\.py|/))`")
OF_OTHERS = {"examples/configs", "examples/nlp/gpt/conf"}
"""Folders of NeMo RL and NeMo-Aligner."""


def is_there(name: str, *folders: Path) -> bool:
    """Whether a path is there, or a pattern matches one."""
    return any(any(folder.glob(name.rstrip("/"))) for folder in folders)


def missing(text: str) -> list[str]:
    """Names of files in a text that are not there."""
    named = [
        name
        for name in BELOW_ROOT.findall(text)
        if name not in OF_OTHERS and not is_there(name, ROOT)
    ]
    package = ROOT / "lockstep"
    named += [
        name
        for name in BELOW_PACKAGE.findall(text)
        if not is_there(name, package, package / "algorithms/self_rewarding", ROOT)
    ]
    return named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_named_in_docs_exists(page: Path) -> None:
    assert not missing(page.read_text())


def test_package_layers_in_conventions_page_match_architecture_rules() -> None:
    rows = re.findall(
        r"^\| F(\d+) \|(.*)\|$", (ROOT / "docs/conventions.md").read_text(), re.MULTILINE
    )
    floors = [[part for part in parts if not part.startswith("__")] for parts in FLOORS]
    assert [int(number) for number, _ in rows] == list(range(len(floors)))
    assert [re.findall(r"`(\w+)/?`", names) for _, names in rows] == floors
