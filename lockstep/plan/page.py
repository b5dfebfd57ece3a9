"""The page of a plan, as text for the user."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from lockstep.algorithms.roles import Load
from lockstep.config import LearnerSection, Parallel
from lockstep.errors import InputError
from lockstep.learners.room import ROOM
from lockstep.plan.estimate import MemoryEstimate
from lockstep.plan.layouts import Changes, Search, cache_override, overrides, rank_cuts
from lockstep.plan.time import Engines, Rates, StepTime
from lockstep.report.terminal import summary_table
from lockstep.units import readable

_SHOWN = 12


@dataclass(frozen=True)
class Plan:
    """A plan as text.

    Attributes:
        text: The page.
        fits: True if some layout does, with changes of the recipe or without.
    """

    text: str
    fits: bool


def page(search: Search, name: str, said: Sequence[str], gpus: int, rates: Rates | None = None) -> Plan:
    """Writes the plan for a number of GPUs: memory by rank, layouts, and the proposed one.

    Args:
        search: Searches the layouts.
        name: Name of the recipe.
        said: The recipe and its overrides, as arguments of `lockstep train` for the planned run.
        gpus: Number of GPUs.
        rates: Rates of one GPU; None: no time is estimated.
    """
    found, standing = search.propose(gpus), search.standing() if search.own.devices == gpus else None
    shown = standing or found or _roomiest(search, gpus)
    blocks = [_model(search, name, gpus), _memory(shown)]
    blocks += [] if rates is None else [_time(search, shown, rates)]
    blocks += [_layouts(search, gpus)] if gpus > 1 else []
    text = "\n\n".join([*blocks, _verdict(search, said, gpus, standing, found)])
    return Plan(text, found is not None or (standing is not None and search.fits(standing)))


def _roomiest(search: Search, gpus: int) -> MemoryEstimate:
    """The layout that needs least memory of a GPU, where nothing fits."""
    found = [search.estimate(parallel) for parallel in search.layouts(gpus)]
    if not any(found):
        raise InputError(
            f"no layout of {gpus} GPUs gives every rank something to do: data-parallel ranks share the rows of an "
            "optimizer step, tensor-parallel ranks the heads; take fewer GPUs, or a larger batch"
        )
    return min((one for one in found if one is not None), key=lambda one: one.device)


def _command(said: Sequence[str], changed: Sequence[str] = ()) -> str:
    """The shell command that starts the planned run; changes replace earlier overrides of the same options."""
    keys = {override.partition("=")[0] for override in changed}
    kept = [word for word in said if word.partition("=")[0] not in keys]
    return f"lockstep train {shlex.join([*kept, *changed])}"


def _model(search: Search, name: str, gpus: int) -> str:
    sizes = search.sizes
    lines = [
        ("plan", f"{name} on {amount(gpus, 'GPU')} of {readable(search.memory)}, on paper"),
        (
            "model",
            f"{sizes.policy:,} parameters: {sizes.layers} layers, hidden size {sizes.hidden:,}, vocabulary "
            f"{sizes.vocabulary:,}"
            + (f"; {sizes.adapters:,} more in adapters, which alone learn" if sizes.adapters else ""),
        ),
    ]
    return summary_table(lines)


def _time(search: Search, estimate: MemoryEstimate, rates: Rates) -> str:
    """Seconds of a step by phase."""
    processes = estimate.placement.processes
    engines = Engines(max(1, processes.engines), processes.width, estimate.sequences)
    sent, copied = 0 if estimate.sync is None else estimate.sync.weights, estimate.to_host + estimate.from_host
    time = StepTime.of(estimate.ranks, search.recipe.inference, engines, rates, sent, copied)
    phases = {name: seconds for name, seconds in asdict(time).items() if seconds}
    lines = [(name, f"{seconds:,.3g} s") for name, seconds in phases.items()]
    what = "response" if time.generate else "row"
    return summary_table([*lines, (f"a step, every {what} as long as it may be", f"{time.total:,.3g} s")])


def amount(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number:,} {what}" + ("" if number == 1 else "es" if what.endswith("s") else "s")


def layout(parallel: Parallel) -> str:
    """A layout as text, such as dp 2 · tp 4 · cp 1."""
    return " · ".join(
        f"{name} {size}" for name, size in parallel.model_dump().items() if name in ("dp", "tp", "cp") or size > 1
    )


def describe_layouts(learner: LearnerSection, own: Mapping[str, LearnerSection]) -> str:
    """The layout of a learner as text, and those of models that have one of their own, by name."""
    return layout(learner.parallel) + "".join(f" ({name}: {layout(other.parallel)})" for name, other in own.items())


def _name_layouts(estimate: MemoryEstimate) -> str:
    return describe_layouts(estimate.learner, {name: rank.learner for name, rank in estimate.own_layouts.items()})


def _options(estimate: MemoryEstimate) -> str:
    learner = estimate.learner
    asked = {
        "sync_every_pass": learner.sync_every_pass,
        "activation_checkpointing": learner.activation_checkpointing,
        "cpu_offload": learner.cpu_offload,
    }
    options = [name for name, chosen in asked.items() if chosen]
    return ", ".join([_name_layouts(estimate), learner.dtype, *options])


def _passes(load: Load, learner: LearnerSection) -> str:
    return f"{amount(load.passes(learner, load.rows), 'pass')} of {load.tokens(learner):,} tokens"


def _memory(estimate: MemoryEstimate) -> str:
    """Lines about memory, by rank at its fullest moment; nothing else is added up."""
    load = estimate.load
    lines = [
        ("layout", _options(estimate)),
        ("placement", estimate.placement.describe()),
        (
            "step",
            f"at most {_passes(load, estimate.learner)} per optimizer step and rank of dp, if every sequence has "
            f"{load.sequence:,} tokens",
        ),
    ]
    lines += [("", f"{name}: at most {_passes(load, rank.learner)}") for name, rank in estimate.own_layouts.items()]
    for name, rank in estimate.ranks.items():
        peak = rank.peak
        lines.append((name, f"{readable(peak.size)} per rank, at the {peak.name}:"))
        lines += [("", f"{readable(size):>9} {what}") for what, size in peak.parts.items() if size]
        if rank.on_host:
            lines.append(("", f"{readable(rank.on_host):>9} weights, gradients, moments in the host's memory"))
    if estimate.sampler is not None:
        whose = "weights" if estimate.sampler.weights else "weights: they are the policy's"
        lines.append(("sampler", f"{readable(estimate.sampler.size)} per GPU of {_engines(estimate)}:"))
        lines.append(("", f"{readable(estimate.sampler.weights):>9} {whose}"))
        lines.append(("", f"{readable(estimate.sampler.cache):>9} keys and values"))
        if estimate.sampler.seen:
            lines.append(("", f"{readable(estimate.sampler.seen):>9} tokens that responses have had, for penalties"))
    for judge in estimate.judges:
        lines.append(("judge", f"{readable(judge.weights)} weights, {readable(judge.cache)} keys and values"))
    if estimate.offloaded:
        what = "of weights and moments per GPU are in the host's memory while engines work;"
        lines.append(("turns", f"{readable(estimate.offloaded)} {what}"))
        lines.append(("", f"in a step {readable(estimate.to_host)} go there, {readable(estimate.from_host)} come back"))
    if estimate.contexts:
        more = readable(estimate.contexts)
        lines.append(("processes", f"{estimate.processes} on a GPU; CUDA and NCCL take {more} more of it than for one"))
    room = f"{readable(int(ROOM * estimate.checkpoint_copies))} free there; otherwise training waits for the disk"
    lines.append(("saving", f"{readable(estimate.checkpoint_copies)} of a machine's memory for copies, with {room}"))
    lines.append(("together", f"{readable(estimate.device)} on the fullest GPU"))
    return summary_table(lines)


def _engines(estimate: MemoryEstimate) -> str:
    processes = estimate.placement.processes
    return amount(processes.engines, "engine") + (f" with {processes.width} each" if processes.width > 1 else "")


def _layouts(search: Search, gpus: int) -> str:
    rows, again = [], Changes({"activation_checkpointing": True})
    for parallel in search.layouts(gpus):
        plain, less = search.estimate(parallel), search.estimate(parallel, again)
        if plain is not None and less is not None:
            rows.append((plain, less))
    rows.sort(key=lambda pair: rank_cuts(pair[0]))
    lines = [("layout", "a GPU holds · with activation_checkpointing")]
    for plain, less in rows[:_SHOWN]:
        lines.append(
            (
                _name_layouts(plain),
                f"{readable(plain.device):>9} · {readable(less.device):>9}",
            )
        )
    if len(rows) > _SHOWN:
        lines.append(("", f"and {len(rows) - _SHOWN} more"))
    return summary_table(lines)


def _verdict(
    search: Search, said: Sequence[str], gpus: int, own: MemoryEstimate | None, found: MemoryEstimate | None
) -> str:
    memory = readable(search.memory)
    if own is not None and search.fits(own):
        return f"It fits: {readable(own.device)} of {memory}. {_command(said, cache_override(own))}"
    asked = describe_layouts(search.recipe.learner, {role.name: role.learner for role in search.recipe.own_layouts})
    if own is not None:
        begin = f"It does not fit as it is: {readable(own.device)} of {memory}."
    else:
        begin = f"The recipe says {asked}, which is not {amount(gpus, 'GPU')}."
    if found is not None:
        command = _command(said, overrides(search.recipe, found))
        return f"{begin} This fits, {readable(found.device)} of {memory}:\n{command}"
    return f"{begin} {_too_few(search, said, gpus)}"


def _too_few(search: Search, said: Sequence[str], gpus: int) -> str:
    more = search.smallest(gpus)
    if more is None:
        alone = search.estimate(Parallel(dp=2))  # with a sampler that holds weights of its own
        if alone is not None and alone.sampler is not None and alone.sampler.weights > search.memory:
            return (
                f"Nothing fits on {gpus} GPUs, nor on more of them, however the learner is cut: the sampler's weights "
                f"alone are {readable(alone.sampler.weights)}, on one GPU. sampler=vllm holds them in the learner's "
                "type; else take a smaller model, or GPUs with more memory."
            )
        return f"Nothing fits on {gpus} GPUs, with any change, nor on more of them: GPUs with more memory are needed."
    return (
        f"Nothing fits on {gpus} GPUs, with any change. {more.placement.processes.devices} would do, with "
        f"{readable(more.device)} each:\n{_command(said, overrides(search.recipe, more))}"
    )
