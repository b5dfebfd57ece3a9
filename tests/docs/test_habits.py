"""What a repository is expected to have is there, and what it names exists."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def lines_to_run(workflow: dict[str, Any]) -> list[str]:
    return [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]


def test_ci_workflow_runs_only_make_targets_and_repository_scripts() -> None:
    typed = lines_to_run(read(".github/workflows/ci.yml"))
    assert ".ci/run" in typed
    for line in typed:
        program, *targets = line.split()
        assert (program == "make" and set(targets) <= TARGETS) or os.access(
            ROOT / program, os.X_OK
        ), line


def test_changelog_has_valid_version_and_section_headings() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions
    assert all(
        re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", version)
        for version in versions
    )
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert len(kinds) == len(set(kinds)) * len(versions)
