"""Taps on learners: in this process, or over ranks in separate processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lockstep.cluster.learner_group import RankSpec, require_computable, start_ranks
from lockstep.cluster.specs import LearnerSpec
from lockstep.cluster.worker_proxy import WorkerProxy, wait_for_calls
from lockstep.cluster.workers import WorkerPool
from lockstep.config import LearnerSection, Parallel
from lockstep.core.errors import InputError
from lockstep.distributed.meeting import RendezvousAddress
from lockstep.learners.rank import RankLearner
from lockstep.models.folder import read_config
from lockstep.models.heads import LogitsHead
from lockstep_doctor.cuts import OUTPUT, CutPoint, End, PassCapture, name_cuts
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.modules import find_watched_modules, values_by_name
from lockstep_doctor.operators import OperatorTrace, chain_traces, join_traces
from lockstep_doctor.tap import Tap, trace_segment
from lockstep_doctor.taps.computation import computation_of
from lockstep_doctor.taps.rank import RankTap

_TIMEOUT_S = 600.0

AttachTap = Callable[[Callable[[], RankLearner], str, int], RankTap]
"""Builds a rank and its tap, from the engine's name and the number of neighbors."""

_MODEL = "lm"
"""Path of the model of `transformers` in a `LogitsHead`."""


def attach_tap(build: Callable[[], RankLearner], name: str, neighbors: int) -> RankTap:
    """Returns the tap on a rank of a torch or Megatron learner."""
    learner = build()  # before Megatron is imported here, since building sets up that import
    if isinstance(learner.model, LogitsHead):
        return tap_torch(learner, learner.model, name, neighbors)
    from lockstep_doctor.taps.megatron import tap_megatron

    return tap_megatron(learner, name, neighbors)


def tap_torch(learner: RankLearner, model: LogitsHead, name: str, neighbors: int) -> RankTap:
    """Returns the tap on a rank of the torch learner: hooks on the `transformers` modules of the
    rank.
    """
    # paths relative to `lm`, since cuts without a unique name are named by path
    inside = find_watched_modules(model.lm)
    named = values_by_name(
        {(f"{_MODEL}.{path}", end): cut for (path, end), cut in name_cuts(inside).items()}
    )

    def name_values(path: str, end: End, value: Any) -> Iterator[tuple[CutPoint, Tensor]]:
        if path != _MODEL:
            yield from named(path, end, value)
        elif end == "out":
            yield OUTPUT, value.logits

    def gather_head() -> Tensor:
        head = model.lm.get_output_embeddings()
        assert isinstance(head, nn.Linear), "sharded logits come from a linear head"
        weight = head.weight.detach()
        if isinstance(weight, DTensor):
            return weight.full_tensor()
        return weight

    paths = [*(f"{_MODEL}.{path}" for path in inside), _MODEL]
    return RankTap(learner, paths, name_values, gather_head, frozenset(), name, neighbors)


class RanksTap:
    """Implements `lockstep_doctor.Tap` over ranks in separate processes.

    Args:
        name: Name of the engine in reports.
        ranks: Proxies of `RankTap`, in the order of `RankMesh.rank_number`.
        parallel: Parallel sizes.
    """

    def __init__(self, name: str, ranks: Sequence[WorkerProxy], parallel: Parallel) -> None:
        self.name = name
        self._ranks = ranks
        self._order: Sequence[CutPoint] = ()
        alike = parallel.cp * parallel.tp
        self._stages = [slice(stage * alike, (stage + 1) * alike) for stage in range(parallel.pp)]

    def run(self, tokens_T: Tensor, forced: Mapping[CutPoint, Tensor]) -> PassCapture:
        found: list[PassCapture] = self._call_ranks("run", tokens_T, dict(forced))
        stages = [found[stage.start] for stage in self._stages]
        seen = dict(chain.from_iterable(one.seen.items() for one in stages))
        self._order = list(seen)
        return PassCapture(stages[-1].logits, seen, stages[-1].column, stages[-1].hidden)

    def trace(
        self,
        tokens_T: Tensor,
        forced: Mapping[CutPoint, Tensor],
        start: CutPoint | None,
        end: CutPoint,
    ) -> OperatorTrace:
        def trace_from(begin: CutPoint | None) -> OperatorTrace:
            found: list[OperatorTrace] = self._call_ranks(
                "trace", tokens_T, dict(forced), begin, end
            )
            return chain_traces([join_traces(found[stage]) for stage in self._stages])

        return trace_segment(trace_from, self._order, start, end)

    def functions(self, tokens_T: Tensor) -> Counter[str]:
        return sum(self._call_ranks("functions", tokens_T), Counter())

    def _call_ranks(self, verb: str, *args: Any) -> list[Any]:
        return wait_for_calls([rank.submit(verb, *args) for rank in self._ranks])


@contextmanager
def open_learner(
    folder: Path, options: EngineOptions, backend: str, attach_rank: AttachTap = attach_tap
) -> Iterator[Tap]:
    """Opens a folder in a learner, in this process if possible; see `engines.OpenTap`."""
    section = LearnerSection.from_computation(
        computation_of(options), backend, Parallel(**options.parallel)
    )
    sizes = {**options.parallel, "packed": 1 + options.neighbors}
    name = " ".join([backend, *(f"{key}={size}" for key, size in sizes.items() if size > 1)])
    spec = LearnerSpec(str(folder), "logits", section, None, 0)
    require_computable(read_config(folder), section)
    if options.prompt is not None:
        raise InputError(
            f"the engine {backend} is a learner, which cannot decode; leave out prompt"
        )
    if section.in_process:
        yield attach_rank(spec.build, name, options.neighbors)
        return
    with WorkerPool() as workers:

        def build_tap(meeting: RendezvousAddress) -> Callable[[], RankTap]:
            return partial(attach_rank, RankSpec(spec, meeting).build, name, options.neighbors)

        ranks, _host = start_ranks(section, f"tap of {name},", build_tap, _TIMEOUT_S, workers)
        for rank in ranks:
            workers.callback(rank.close)
        wait_for_calls([rank.pending for rank in ranks])
        yield RanksTap(name, ranks, section.parallel)


open_torch = partial(open_learner, backend="torch")
open_megatron = partial(open_learner, backend="megatron")
