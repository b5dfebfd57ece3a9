"""A pytest plugin that runs NeMo RL's own tests of its log-probabilities without GPUs, unchanged,
by either library.

`pytest -p benchmarks.mission.nemo_rl_plugin --noconftest --checkout FOLDER --library
lockstep_logprobs FILES`

Their ranks are processes over gloo, "cuda" is this machine's memory, their actors are processes
without Ray, and packages that the tests import but do not call are empty. With `--library
lockstep_logprobs` the name `nemo_rl.distributed.model_utils` is Lockstep's module; all else of NeMo
RL is its own.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import connection, get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from benchmarks.harness import MemoryGrowth

LIBRARIES = ("nemo_rl", "lockstep_logprobs")
MODULE = "nemo_rl.distributed.model_utils"
EMPTY = ("hydra", "megatron")
"""Packages that NeMo RL's modules import, of versions of its own, and these tests do not call."""
FORK = get_context("fork")
"""Ranks have the tests' modules, and all that stands in for others, from the process that started
them.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--checkout", help="a checkout of NeMo RL")
    parser.addoption("--library", choices=LIBRARIES, help="whose functions the tests call")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mcore: NeMo RL's own mark")
    sys.dont_write_bytecode = True  # the checkout stays as it is
    sys.path.insert(0, str(config.getoption("--checkout")))
    sys.meta_path.insert(0, EmptyPackages())
    for name, members in _stand_ins().items():
        sys.modules[name] = _module(name, **members)
    if config.getoption("--library") == "lockstep_logprobs":
        sys.modules[MODULE] = importlib.import_module("lockstep_logprobs.model_utils")
    _without_gpus()


@pytest.fixture
def distributed_test_runner() -> Callable[..., None]:
    """Runs a function of rank and world size on so many ranks."""

    def run(function: Callable[[int, int], None], world_size: int, backend: str = "nccl") -> None:
        def on_rank(rank: int) -> None:
            dist.init_process_group(backend)
            function(rank, world_size)

        workers = Workers(world_size, lambda rank: SimpleNamespace(run=lambda: on_rank(rank)))
        try:
            workers.call("run")
        finally:
            workers.close()

    return run


class Workers:
    """Processes of which each holds an object whose methods it calls.

    Args:
        size: How many.
        build: Builds the object of a rank, in its process.
    """

    def __init__(self, size: int, build: Callable[[int], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nemo-rl-")
        self._pipes: list[connection.Connection] = []
        self._processes: list[Any] = []
        for rank in range(size):
            mine, theirs = FORK.Pipe()
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "STORE": self._folder.name,
            }
            process = FORK.Process(target=_serve, args=(theirs, build, rank, place), daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def call(self, method: str, **arguments: object) -> list[Any]:
        """Calls a method on every rank. Returns what each returned.

        Raises:
            AssertionError: With the first traceback of a rank.
        """
        for pipe in self._pipes:
            pipe.send((method, arguments))
        answers: dict[int, Any] = {}
        while len(answers) < len(self._pipes):
            open_pipes = {id(pipe): pipe for pipe in self._pipes if id(pipe) not in answers}
            for ready in connection.wait(list(open_pipes.values())):
                error, answers[id(ready)] = open_pipes[id(ready)].recv()
                if error:
                    raise AssertionError(error)
        return [answers[id(pipe)] for pipe in self._pipes]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(
    pipe: connection.Connection, build: Callable[[int], Any], rank: int, place: dict[str, str]
) -> None:
    os.environ |= place
    served = None
    while True:
        method, arguments = pipe.recv()
        try:
            served = served or build(rank)
            pipe.send((None, getattr(served, method)(**arguments)))
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            pipe.send(
                (
                    f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",
                    None,
                )
            )


class WorkerGroup:
    """Stands in for NeMo RL's group of Ray actors."""

    def __init__(
        self, cluster: Any, remote_worker_builder: Any, sharding_annotations: Any, **_: object
    ) -> None:
        module, _, name = remote_worker_builder.name.rpartition(".")
        actor = getattr(sys.modules[module], name)
        size = int(cluster.size)
        self._workers = Workers(size, lambda rank: actor(*remote_worker_builder.arguments))

    def run_all_workers_single_data(self, method: str, **arguments: object) -> list[Any]:
        return self._workers.call(method, **arguments)

    def shutdown(self, force: bool = False) -> None:
        self._workers.close()


class Builder:
    """Stands in for what builds an actor."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.name = name
        self.arguments = arguments


class Cluster:
    """Stands in for a cluster of Ray."""

    def __init__(self, bundle_ct_per_node_list: list[int], **_: object) -> None:
        self.size = sum(bundle_ct_per_node_list)

    def shutdown(self) -> None:
        """Nothing was started."""


def _stand_ins() -> dict[str, dict[str, object]]:
    return {
        "ray": {"remote": lambda **_: lambda actor: actor, "get": lambda results: results},
        "nemo_rl.distributed.virtual_cluster": {"RayVirtualCluster": Cluster},
        "nemo_rl.distributed.worker_groups": {
            "RayWorkerBuilder": Builder,
            "RayWorkerGroup": WorkerGroup,
        },
        "nemo_rl.distributed.ray_actor_environment_registry": {
            "ACTOR_ENVIRONMENT_REGISTRY": {},
            "PY_EXECUTABLES": SimpleNamespace(SYSTEM="python"),
        },
        "megatron.core.packed_seq_params": {"PackedSeqParams": SimpleNamespace},
        "nemo_rl.models.policy": {},
        "nemo_rl.utils.logger": {},
    }


def _module(name: str, **members: object) -> ModuleType:
    """A module with members; its other names are empty classes."""
    module = ModuleType(name)
    vars(module).update({"__getattr__": _empty_class, **members})
    return module


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty package for each of `EMPTY`; all its names are empty classes."""

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        wanted = any(name == package or name.startswith(f"{package}.") for package in EMPTY)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has nothing to run."""


class OnCpu(TorchFunctionMode):
    """Puts on the CPU what is asked for on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        moved = {key: _move(value) for key, value in (kwargs or {}).items()}
        return func(*map(_move, args), **moved)


def _move(value: Any) -> Any:
    is_gpu = isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"
    return torch.device("cpu") if is_gpu else value


def _without_gpus() -> None:
    """Lets this process and those that it starts take gloo for NCCL and the machine's memory for a
    GPU's.
    """
    start = dist.init_process_group

    def join(backend: str, **_: object) -> None:
        store = f"file://{os.environ['STORE']}/store"
        start(
            "gloo",
            init_method=store,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )

    held = SimpleNamespace(growth=None)

    def reset() -> None:
        held.growth = MemoryGrowth()

    dist.init_process_group = join
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.memory_allocated = lambda device=None: 0
    torch.cuda.max_memory_allocated = lambda device=None: held.growth.peak()
    torch.cuda.reset_peak_memory_stats = lambda device=None: reset()
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_: None)
    OnCpu().__enter__()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Ranks share the machine's cores."""
    torch.set_num_threads(1)
