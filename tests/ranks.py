"""Real processes over gloo that tests send functions to, and counters of what such a function does.

The processes start once per session and are told, call by call, what to run; a call takes a few milliseconds. What a
function needs travels to every rank and what it returns travels back, so that the comparison with the dense reference
stands in the test. A function is sent by name: it has to lie at the top of a module.
"""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEADLINE_S = 400.0
GRACE_S = 2.0
"""How long the other ranks may take to answer once one has failed; they may well wait for it."""


@dataclass(frozen=True)
class Layout:
    """This rank's place in tensor-parallel × context-parallel ranks: rank = cp_rank · tp + tp_rank."""

    tp: int
    cp: int
    rank: int
    tp_group: dist.ProcessGroup
    cp_group: dist.ProcessGroup

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def cp_rank(self) -> int:
        return self.rank // self.tp

    @property
    def cp_group_or_none(self) -> dist.ProcessGroup | None:
        """As callers without context parallelism pass it."""
        return self.cp_group if self.cp > 1 else None

    def mesh(self, *names: str) -> DeviceMesh:
        """The mesh of both groups, or of one: `mesh("tp")`, `mesh("cp", "tp")`."""
        ranks = torch.arange(self.tp * self.cp).view(self.cp, self.tp)
        if names == ("cp", "tp"):
            return DeviceMesh.from_group([self.cp_group, self.tp_group], "cpu", ranks, mesh_dim_names=names)
        group, line = (
            (self.tp_group, ranks[self.cp_rank]) if names == ("tp",) else (self.cp_group, ranks[:, self.tp_rank])
        )
        return DeviceMesh.from_group(group, "cpu", line, mesh_dim_names=names)


class RanksFailed(AssertionError):
    """What went wrong on which rank, with its traceback."""


class Ranks:
    """A pool of `world` processes; it starts with the first call, and again after one that not all answered.

    Args:
        context: How they are started.
        world: How many.
    """

    def __init__(self, context: ForkServerContext, world: int = 4) -> None:
        self._context, self._world = context, world
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    def run(self, function: Callable[..., Any], *args: object, tp: int = 1, cp: int = 1) -> list[Any]:
        """Calls `function(layout, *args)` on tp · cp ranks; what each returned, by rank.

        Raises:
            RanksFailed: On some rank an error was raised, or it did not answer in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps((function, args, tp, cp)))
        answers = self._answers()
        failures = [f"rank {rank}:\n{text}" for rank, (fine, text) in sorted(answers.items()) if not fine]
        silent = sorted(set(range(self._world)) - answers.keys())
        if silent:  # in the middle of a collective, or gone; where all have answered, they are in step
            self.close()
        if failures or silent:
            raise RanksFailed("\n".join([*failures, f"no answer from ranks {silent}" if silent else ""]))
        return [answers[rank][1] for rank in range(tp * cp)]

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        store = str(Path(self._folder.name) / "store")
        for rank in range(self._world):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, rank, self._world, store), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _answers(self) -> dict[int, tuple[bool, Any]]:
        """By rank: whether it went well, and the result or the traceback. Silent ranks are missing."""
        answers: dict[int, tuple[bool, Any]] = {}
        waiting = dict(zip(self._pipes, range(self._world), strict=True))
        end = time.monotonic() + DEADLINE_S
        while waiting and (ready := connection.wait(list(waiting), max(0.0, end - time.monotonic()))):
            for pipe in [pipe for pipe in waiting if pipe in ready]:
                rank, answer = waiting.pop(pipe), _answer(pipe)
                if answer is not None:
                    answers[rank] = answer
                if answer is None or not answer[0]:
                    end = min(end, time.monotonic() + GRACE_S)
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder = [], [], None


def _answer(pipe: connection.Connection) -> tuple[bool, Any] | None:
    """What the rank sent; None where it has died."""
    try:
        return pickle.loads(pipe.recv_bytes())
    except (EOFError, ConnectionError):
        return None


def _serve(pipe: connection.Connection, rank: int, world: int, store: str) -> None:
    """A rank: it runs what it is sent until its parent is gone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    layout = functools.cache(functools.partial(_layout, rank))
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, ConnectionError):
            os._exit(0)
        pipe.send_bytes(pickle.dumps(_outcome(layout, message)))


def _outcome(layout: Callable[[int, int], Layout | None], message: bytes) -> tuple[bool, Any]:
    try:
        function, args, tp, cp = pickle.loads(message)
        place = layout(tp, cp)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return True, None if place is None else function(place, *args)
    except BaseException:
        return False, traceback.format_exc()


def _layout(rank: int, tp: int, cp: int) -> Layout | None:
    """Every rank takes part in making the groups, also those that are in none of them."""
    of_tp = [dist.new_group([c * tp + t for t in range(tp)]) for c in range(cp)]
    of_cp = [dist.new_group([c * tp + t for c in range(cp)]) for t in range(tp)]
    if rank >= tp * cp:
        return None
    own_tp, own_cp = of_tp[rank // tp], of_cp[rank % tp]
    assert isinstance(own_tp, dist.ProcessGroup)
    assert isinstance(own_cp, dist.ProcessGroup)
    return Layout(tp, cp, rank, own_tp, own_cp)


class Collectives(TorchDispatchMode):
    """Counts the collectives that run inside it, by name: {"allreduce": 2}."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if namespace.startswith(("c10d", "_c10d")) and name != "wait_tensor":
            self.counts[name.strip("_").replace("all_reduce", "allreduce")] += 1
        return func(*args, **(kwargs or {}))


class Products(TorchDispatchMode):
    """Counts the multiplications of matrix products, in place ones too."""

    def __init__(self) -> None:
        super().__init__()
        self.multiplications = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::mm", "aten::addmm", "aten::addmm_"):
            left, right = args[-2:]
            self.multiplications += left.numel() * right.shape[1]
        return func(*args, **(kwargs or {}))


class Largest(TorchDispatchMode):
    """The bytes of the largest memory that an operation newly took."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        views = any(returned.alias_info is not None for returned in func._schema.returns)
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, Tensor) and not views:
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return found


class Operations(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


_WAIT = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_FETCH = {Tensor.tolist, Tensor.numpy, Tensor.cpu}


class HostWaits(TorchDispatchMode):
    """Names the operations for which the host would have to wait for a device: those that need a value or a size."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        by_mask = name in _INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        unsized = name == "repeat_interleave" and kwargs.get("output_size") is None and isinstance(args[-1], Tensor)
        if name in _WAIT or by_mask or unsized:
            self.found.append(name)
        return func(*args, **kwargs)


class Fetches(TorchFunctionMode):
    """Names the calls that read a tensor's memory without an operation that `HostWaits` would see."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FETCH:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))
