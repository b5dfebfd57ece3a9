"""The reference that the site makes has all that the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from lockstep.config import registry
from lockstep.config.errors import RecipeShape, list_options
from lockstep.report.metric_sentences import BY_LAST_WORD, BY_NAME

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLES = ("options.md", "metrics.md")


def test_the_reference_of_the_site_has_every_option_metric_and_name(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / ".ci/docs_pages.py"), str(tmp_path)], cwd=ROOT, check=True
    )
    rows = {
        page: set(re.findall(r"^\| `(.+?)` \|", (tmp_path / page).read_text(), re.MULTILINE))
        for page in TABLES
    }
    for name, kind in registry.iterate_algorithms():
        assert f"### `algorithm: {name}`\n" in (tmp_path / "options.md").read_text()
        keys = {
            key.rpartition(".")[2] for key in list_options(RecipeShape(kind, {"algorithm": name}))
        }
        assert keys - {"algorithm"} <= rows["options.md"]
    assert rows["metrics.md"] > {*BY_NAME, *BY_LAST_WORD}
    page = (tmp_path / "lockstep.md").read_text()
    arguments = page.partition("::: lockstep.GRPO\n")[2].partition("\n::: ")[0]
    assert {"policy", "clip"} <= set(re.findall(r"^\| `(.+?)` \|", arguments, re.MULTILINE))
    for package in ("lockstep", "lockstep.algorithms", "lockstep_logprobs"):
        listed = re.findall(
            r"^::: (.*)$", (tmp_path / f"{package.replace('.', '_')}.md").read_text(), re.MULTILINE
        )
        names = {f"{package}.{name}" for name in import_module(package).__all__}
        assert set(listed) == names - {"lockstep.losses", "lockstep.objectives"}, (
            "those have pages of their own"
        )
