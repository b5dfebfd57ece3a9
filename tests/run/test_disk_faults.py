"""Every call of a run that touches the disk fails once, in every way: the same command ends with the same bytes.

One in fifty is tried in CI and each in proofs, where opening and closing for reading fails as well.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from disk_faults import Driver, Ended, build_shim, driving
from killing import contents
from tiny_recipe import RECIPE, REWARDS

FAULTS = (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.ENOTEMPTY, errno.ESTALE, 0)
"""The errnos; 0 kills the process there."""

FIRST = {**RECIPE, "run": {**RECIPE["run"], "folder": "first", "max_steps": 1}}
LATER = {
    **RECIPE,
    "model": {"from_recipe": "first.yaml"},
    "run": {**RECIPE["run"], "max_steps": 2, "keep": 1, "validate_every": 2},
}
COMMAND = ("train", "later.yaml")


@dataclass(frozen=True)
class Place:
    """Where runs with a warm start, checkpoints, validation and export fail."""

    driver: Driver
    folder: Path

    def run(self, name: str, at: int = -1, error: int = 0, reads: bool = False) -> tuple[Ended, Ended, Path]:
        """Runs the command with a fault, and if that ended it, again. Returns both ends, and the folder."""
        work = self.folder / name / "work"
        work.mkdir(parents=True)
        (work / "rewards.py").write_text(REWARDS)
        (work / "first.yaml").write_text(yaml.safe_dump(FIRST))
        (work / "later.yaml").write_text(yaml.safe_dump(LATER))
        ended = self.driver.run(work, COMMAND, at, error, reads)
        return ended, self.driver.run(work, COMMAND) if ended.code else ended, work


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the calls that fail")
    with driving(build_shim(tmp_path)) as driver:
        yield Place(driver, tmp_path)


def results(work: Path) -> dict[str, bytes]:
    """All that the runs leave, but for the report of an error and older checkpoints, which a failure may spare."""
    found = dict[str, bytes]()
    for run in ("first", "run"):
        newest = max((path.name for path in (work / run / "checkpoints").glob("step_*")), default="")
        for name, content in contents(str(work / run)).items():
            if name != "crash.txt" and not (name.startswith("checkpoints/step_") and newest not in name):
                found[f"{run}/{name}"] = content
    return found


def faulty(place: Place, share: int, seed: int, reads: bool) -> Counter[str]:
    """Tries one in so many of all calls and faults; returns how many ended how."""
    calm, _, work = place.run("calm", reads=reads)
    assert calm.code == 0, calm.told
    expected, chance, outcomes = results(work), random.Random(seed), Counter[str]()
    cases = [(at, error) for at in range(len(calm.calls)) for error in FAULTS]
    for at, error in chance.sample(cases, len(cases) // share):
        ended, again, work = place.run("case", at, error, reads)
        what = f"{errno.errorcode.get(error, 'killed')} in {calm.calls[at]}: code {ended.code}\n{ended.told}"
        assert ended.code in (0, 1, 2) or (error == 0 and ended.code == -9), what
        assert "Traceback" not in ended.told, what
        assert ended.code <= 0 or ended.told.splitlines()[-1].startswith("lockstep: "), what
        assert again.code == 0, f"{what}\nand again: code {again.code}\n{again.told}"
        found = results(work)
        assert found == expected, (
            f"{what}\n{sorted(name for name in found | expected if found.get(name) != expected.get(name))}"
        )
        outcomes["killed, resumed" if ended.code < 0 else "told, resumed" if ended.code else "trained to its end"] += 1
        shutil.rmtree(work.parent)
    print(f"\n{len(calm.calls)} calls × {len(FAULTS)} faults, 1 in {share}: {dict(outcomes)}")
    return outcomes


@pytest.mark.full
def test_one_in_fifty_ends_in_the_same_bytes(place: Place) -> None:
    outcomes = faulty(place, 50, seed=0, reads=False)
    assert outcomes["told, resumed"] > 10
    assert outcomes["killed, resumed"] > 3


@pytest.mark.proof
def test_each_ends_in_the_same_bytes(place: Place) -> None:
    faulty(place, 1, seed=0, reads=True)
