"""Every call of a run to disks, servers and its own processes fails once, in every way.

The same command then ends with the same bytes, or it has said in one sentence why it ended, and
does so when it is given again. One in fifty to a hundred is tried in CI and each in proofs, where
opening and closing fail as well.
"""

from __future__ import annotations

import errno
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_shim import ENDED, KILLED, SHORT, Driver, Ended, Kind, build_shim, driving
from judge_server import Said, serve_judge
from killing import contents
from tiny_recipe import GRPO, RECIPE, REWARDS

OF_DISKS = (errno.EIO, errno.ENOSPC, errno.EINVAL, errno.ENOTEMPTY, errno.ESTALE, KILLED)
OF_READS = (*OF_DISKS, SHORT)
OF_SOCKETS = (errno.ECONNRESET, errno.ETIMEDOUT, ENDED, SHORT, KILLED)
NAMES = {KILLED: "killed", ENDED: "the end", SHORT: "one byte", **errno.errorcode}

FIRST = {**RECIPE, "run": {**RECIPE["run"], "folder": "first", "max_steps": 1}}
LATER = {
    **RECIPE,
    "model": {"from_recipe": "first.yaml"},
    "run": {**RECIPE["run"], "max_steps": 2, "keep": 1, "validate_every": 2},
}
SHARED = {
    **GRPO,
    "learner": {"device": "cpu", "parallel": {"dp": 2}},
    "sampler": {"replicas": 1},
    "run": {**RECIPE["run"], "max_steps": 2, "keep": 1},
}
RANKED = [
    {
        "prompt": "p0",
        "responses": ["worth 5 long long", "worth 1", "worth 3 x"],
        "ranks": [0, 2, 1],
    },
    {"prompt": "p1", "responses": ["worth 2", "worth 4"], "ranks": [0, 1]},
]


@dataclass(frozen=True)
class Scene:
    """A command and what it leaves.

    Attributes:
        command: Its arguments.
        files: Files that it begins with, by name.
        folders: What it makes.
    """

    command: tuple[str, ...]
    files: dict[str, str]
    folders: tuple[str, ...]

    def results(self, work: Path) -> dict[str, bytes]:
        """All that it leaves, but for the report of an error and older checkpoints, which a failure
        may spare.
        """
        found = dict[str, bytes]()
        for folder in self.folders:
            newest = max(
                (path.name for path in (work / folder / "checkpoints").glob("step_*")), default=""
            )
            for name, content in contents(str(work / folder)).items():
                older = name.startswith("checkpoints/step_") and newest not in name
                if (
                    name != "crash.txt"
                    and not older
                    and not name.startswith("checkpoints/.aside_old_")
                ):
                    # What code a run calls is known by its path, too, which is each case's own.
                    found[f"{folder}/{name}"] = content.replace(
                        str(work.resolve()).encode(), b"work"
                    )
        return found


def train(recipe: dict[str, Any], **others: dict[str, Any]) -> Scene:
    recipes = {"later": recipe, **others}
    files = {f"{name}.yaml": yaml.safe_dump(recipe) for name, recipe in recipes.items()}
    folders = tuple(recipe["run"]["folder"] for recipe in recipes.values())
    return Scene(("train", "later.yaml"), files | {"rewards.py": REWARDS}, folders)


PPO, IN_RANKS = train(LATER, first=FIRST), train(SHARED)


def honest(question: str) -> Said:
    """A judge who believes what responses say of themselves."""
    worth = re.findall(r"worth ([0-9])", question)
    if len(worth) == 1:
        return 200, f"Score: {worth[0]}"
    return 200, f"Winner: {'A' if worth[0] >= worth[1] else 'B'}"


@pytest.fixture
def judged() -> Iterator[Scene]:
    """A judge behind a server, of whom it is asked how often he agrees with people."""
    with serve_judge(honest) as server:
        options = [
            "judge.template='P {prompt} R {response}'", ("pairs.template='P {prompt} A "
                                                        "{response_a} B {response_b}'"),
            "judge.sampling.max_tokens=16", "learner.device=cpu", "judge.sampler.openai.model=m/7b",
            "judge.sampler.openai.max_concurrency=1", "judge.sampler.openai.max_retries=2",
        ]  # fmt: skip
        rows = "".join(json.dumps(row) + "\n" for row in RANKED)
        yield Scene(
            ("eval", server.url, "rows.jsonl", "--recipe", "eval_judge", "--out", "run", *options),
            {"rows.jsonl": rows},
            ("run",),
        )


@dataclass(frozen=True)
class Place:
    """Where commands fail."""

    driver: Driver
    folder: Path

    def run(
        self, scene: Scene, name: str, kind: Kind, at: int = -1, fault: int = 0
    ) -> tuple[Ended, Ended, Path]:
        """Runs the command with a fault, and if that ended it, again.

        Returns both ends, and the folder.
        """
        work = self.folder / name / "work"
        work.mkdir(parents=True)
        for file, text in scene.files.items():
            (work / file).write_text(text)
        ended = self.driver.run(work, scene.command, kind, at, fault)
        return ended, self.driver.run(work, scene.command) if ended.code else ended, work


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One for all tests: it forks a process for each command, and to import what those need takes
    seconds.
    """
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the calls that fail")
    with driving(build_shim(tmp_path_factory.mktemp("shim"))) as driver:
        yield driver


@pytest.fixture
def place(driver: Driver, tmp_path: Path) -> Place:
    return Place(driver, tmp_path)


def judge_end(ended: Ended, again: Ended, killed: bool) -> str:
    """Returns what is wrong with two ends; empty where nothing is."""
    if ended.code not in (0, 1, 2) and not (killed and ended.code == -9):
        return "a code that no end has"
    if "Traceback" in ended.told:
        return "a traceback"
    if ended.code > 0 and not ended.told.splitlines()[-1].startswith("lockstep: "):
        return "no sentence"
    return "no end, when it is given again" if again.code else ""


def faulty(
    place: Place,
    scene: Scene,
    kind: Kind,
    faults: tuple[int, ...],
    share: int,
    counts: Callable[[str], bool] = lambda call: True,
) -> Counter[str]:
    """Tries one in so many of all calls and faults; returns how many ended how."""
    calm, _, work = place.run(scene, "calm", kind)
    assert calm.code == 0, calm.told
    expected, chance, outcomes = scene.results(work), random.Random(0), Counter[str]()
    cases = [
        (at, fault) for at, (call, _) in enumerate(calm.calls) if counts(call) for fault in faults
    ]
    for at, fault in chance.sample(cases, max(1, len(cases) // share)):
        ended, again, work = place.run(scene, "case", kind, at, fault)
        what = f"{NAMES[fault]} in call {at}, {calm.calls[at]}: code {ended.code}\n{ended.told}"
        wrong = judge_end(ended, again, fault == KILLED)
        assert not wrong, f"{wrong}: {what}\nand again: code {again.code}\n{again.told}"
        found = scene.results(work)
        differ = sorted(name for name in found | expected if found.get(name) != expected.get(name))
        assert not differ, f"{what}\n{differ}"
        outcomes[
            "killed, resumed"
            if ended.code < 0
            else "told, resumed"
            if ended.code
            else "ran to its end"
        ] += 1
        shutil.rmtree(work.parent)
    print(f"\n{len(calm.calls)} calls, {len(cases)} cases, 1 in {share}: {dict(outcomes)}")
    return outcomes


def in_child(call: str) -> bool:
    return call.startswith("child:")


@pytest.mark.full
def test_one_percent_of_disk_faults_end_in_bit_identical_run_files(place: Place) -> None:
    outcomes = faulty(place, PPO, "disk", OF_DISKS, 100)
    assert outcomes["told, resumed"] > 10
    assert outcomes["killed, resumed"] > 1


@pytest.mark.full
@pytest.mark.needs("gloo")
def test_one_percent_of_worker_disk_faults_end_in_bit_identical_run_files(place: Place) -> None:
    assert faulty(place, IN_RANKS, "disk", OF_DISKS, 100, in_child).total()


@pytest.mark.full
def test_one_in_fifty_helper_process_faults_ends_in_bit_identical_run_files(place: Place) -> None:
    assert faulty(place, PPO, "processes", OF_SOCKETS, 50).total()


@pytest.mark.full
def test_one_in_forty_judge_server_faults_ends_in_bit_identical_eval_files(
    place: Place, judged: Scene
) -> None:
    assert faulty(place, judged, "servers", OF_SOCKETS, 40)["ran to its end"]


@pytest.mark.proof
def test_every_disk_fault_ends_in_bit_identical_run_files(place: Place) -> None:
    faulty(place, PPO, "reads", OF_READS, 1)


@pytest.mark.proof
@pytest.mark.needs("gloo")
def test_every_worker_disk_and_message_fault_ends_in_bit_identical_run_files(place: Place) -> None:
    faulty(place, IN_RANKS, "reads", OF_READS, 1, in_child)
    shutil.rmtree(place.folder / "calm")
    faulty(place, IN_RANKS, "processes", OF_SOCKETS, 1)


@pytest.mark.proof
def test_every_helper_and_judge_server_fault_ends_in_bit_identical_files(
    place: Place, judged: Scene
) -> None:
    faulty(place, PPO, "processes", OF_SOCKETS, 1)
    shutil.rmtree(place.folder / "calm")
    faulty(place, judged, "servers", OF_SOCKETS, 1)
