"""Files of deploy/: every command of Lockstep in them is tried, and each version, extra and file in
them is there.

They were linted by hand, with hadolint, shellcheck and KubeRay's own schema (LOG.md), for which CI
has no room.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from gpus import show_gpus
from hub_server import HubServer, environment_of, read_files, serve_hub

from lockstep.cli import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
IMAGES = sorted(DEPLOY.glob("*.Dockerfile"))
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
[VOLUME, JOB] = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())


def shell_commands() -> list[str]:
    """Commands of Lockstep in the job for Slurm."""
    lines = (DEPLOY / "slurm.sh").read_text().replace("\\\n", " ").splitlines()
    return [line.removesuffix("&") for line in lines if line.startswith("lockstep ")]


def image_commands() -> list[str]:
    """Commands that the Dockerfiles' first lines tell to run in an image."""
    return [
        text
        for image in IMAGES
        for text in re.findall(r"^#.* lockstep:\w+ (lockstep .+)$", image.read_text(), re.M)
    ]


TRIED = {
    "slurm": (shell_commands()[0], 8),
    "kuberay": (JOB["spec"]["entrypoint"], 0),
    "cpu": (image_commands()[0], 0),
}
"""Commands that train, and the GPUs that are seen where they run: the head of KubeRay's cluster has
none.
"""


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod of the job, and its container."""
    cluster = JOB["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        yield pod, pod["containers"][0]


@pytest.fixture
def hub(assets: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a model and a data set of the names that the files have; the model is a small
    one.
    """
    model = read_files(assets / "models/stories260K/hf")
    config = json.loads(model["config.json"]) | {"max_position_embeddings": 8192}
    Dataset.from_list(
        [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(1024)]
    ).to_parquet("rows.parquet")
    rows = Path("rows.parquet").read_bytes()
    with serve_hub() as server:
        for name, value in environment_of(server.url, Path("cache")).items():
            monkeypatch.setenv(name, value)
        server.push(
            "models/Qwen/Qwen2.5-1.5B-Instruct",
            model | {"config.json": json.dumps(config).encode()},
        )
        splits = {f"main/{split}-00000-of-00001.parquet": rows for split in ("train", "test")}
        server.push("datasets/openai/gsm8k", splits)
        yield server


@pytest.mark.parametrize("name", TRIED)
def test_every_train_command_of_deploy_files_passes_dry_run(
    name: str,
    hub: HubServer,
    in_tmp: Path,
    vllm: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, gpus = TRIED[name]
    show_gpus(monkeypatch, gpus)
    _, *arguments = shlex.split(command.replace("/shared", str(in_tmp)))
    assert main([*arguments, "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_dockerfile_extras_pinned_versions_and_user_are_valid(image: Path) -> None:
    text = image.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r'"\.\[(.+)\]"', text)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert "-c constraints.txt" in text
    for name, version in re.findall(r"(torch|vLLM) (\d[\d.]+\d)", text):
        assert PINS[name.lower()] == version
    user = [line for line in text.splitlines() if line.startswith("USER ")]
    assert user == ["USER 1000"]


def test_dockerignore_includes_every_package_and_build_file() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    named = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "tests" not in named
    assert all((ROOT / name).exists() for name in named)
    assert {path.parent.name for path in ROOT.glob("lockstep*/__init__.py")} <= named
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {
        "pyproject.toml",
        "constraints.txt",
        project["readme"],
        *project["license-files"],
    } <= named


def test_kuberay_job_versions_images_gpus_and_volumes_are_consistent() -> None:
    cluster, (_, head), (_, worker) = JOB["spec"]["rayClusterSpec"], *containers()
    assert cluster["rayVersion"] == PINS["ray"]
    assert head["image"] == worker["image"]
    gpus = (
        int(worker["resources"]["limits"]["nvidia.com/gpu"])
        * cluster["workerGroupSpecs"][0]["replicas"]
    )
    assert f"learner.parallel.dp={gpus} " in JOB["spec"]["entrypoint"]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    for pod, container in containers():
        assert pod["securityContext"]["runAsUser"] == 1000
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == VOLUME["metadata"]["name"]
