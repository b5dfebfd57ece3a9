"""What a repository is expected to have is there, and what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def lines_to_run(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_runs_what_a_contributor_runs() -> None:
    typed = lines_to_run(read(".github/workflows/ci.yml"))
    assert ".ci/run" in typed
    for line in typed:
        program, *targets = line.split()
        assert (program == "make" and set(targets) <= TARGETS) or os.access(ROOT / program, os.X_OK), line


def test_hooks_are_local_and_call_what_the_environment_has() -> None:
    for repository in read(".pre-commit-config.yaml")["repos"]:
        assert repository["repo"] == "local", "others are downloaded"
        for hook in repository["hooks"]:
            program = Path(hook["entry"].split()[0])
            assert program.parent == Path(".venv/bin")
            assert (Path(sys.executable).parent / program.name).is_file(), "an extra `test` brings it"
            subprocess.run([Path(sys.executable).parent / program.name, "--version"], check=True, capture_output=True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_for_issues_asks_for_something(form: Path) -> None:
    asked = read(str(form.relative_to(ROOT)))
    assert {"name", "description", "body"} <= asked.keys()
    fields = [field for field in asked["body"] if field["type"] in ("input", "textarea")]
    assert fields
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_a_citation_has_what_the_format_asks_for() -> None:
    cited = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["license"] == "Apache-2.0"


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", version) for version in versions)
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert len(kinds) == len(set(kinds)) * len(versions)


def test_targets_that_pages_name_are_made() -> None:
    for page in ("AGENTS.md", "CONTRIBUTING.md", ".github/pull_request_template.md", "docs/releasing.md"):
        named = set(re.findall(r"`make ([\w-]+)`", (ROOT / page).read_text()))
        assert named <= TARGETS, page
