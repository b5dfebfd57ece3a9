"""The page of a plan, as text for the user."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from lockstep.config import LearnerSection, Parallel
from lockstep.core.errors import InputError
from lockstep.plan.estimate import MemoryEstimate
from lockstep.plan.layouts import LayoutSearch, cache_override, list_overrides, rank_cuts
from lockstep.plan.time import DeviceRates, EngineCounts, StepTime
from lockstep.report.terminal import summary_table
from lockstep.system.units import format_bytes

_SHOWN = 12


@dataclass(frozen=True)
class PlanPage:
    """A plan as text.

    Attributes:
        text: The page.
        fits: Whether a layout fits, with or without changes of the recipe.
    """

    text: str
    fits: bool


def render_plan(
    search: LayoutSearch,
    name: str,
    arguments: Sequence[str],
    gpus: int,
    rates: DeviceRates | None = None,
) -> PlanPage:
    """Writes the plan for a number of GPUs: memory by rank, layouts, and the proposed one.

    Args:
        search: Searches the layouts.
        name: Name of the recipe.
        arguments: The recipe and its overrides, as arguments of `lockstep train` for the planned
            run.
        gpus: Number of GPUs.
        rates: Rates of one GPU; None skips the time estimate.
    """
    found = search.propose_layout(gpus)
    standing = search.estimate_unchanged() if search.own_processes.total_devices == gpus else None
    shown = standing or found or _find_roomiest(search, gpus)
    blocks = [_describe_model(search, name, gpus), _describe_memory(shown)]
    blocks += [] if rates is None else [_describe_time(search, shown, rates)]
    blocks += [_render_layouts(search, gpus)] if gpus > 1 else []
    text = "\n\n".join([*blocks, _describe_verdict(search, arguments, gpus, standing, found)])
    return PlanPage(
        text, found is not None or (standing is not None and search.fits_device(standing))
    )


def _find_roomiest(search: LayoutSearch, gpus: int) -> MemoryEstimate:
    """The layout that needs the least memory per GPU, for when nothing fits."""
    found = list(map(search.estimate_layout, search.list_layouts(gpus)))
    if not any(found):
        raise InputError(
            f"no layout of {gpus} GPUs gives every rank work: data-parallel ranks share the rows "
            "of an optimizer step, tensor-parallel ranks the heads; use fewer GPUs, or a larger "
            "batch"
        )
    return min((one for one in found if one is not None), key=lambda one: one.device_bytes)


def _render_command(arguments: Sequence[str], changed: Sequence[str] = ()) -> str:
    """The shell command for the planned run; changes replace earlier overrides of an option."""
    keys = {override.partition("=")[0] for override in changed}
    kept = [word for word in arguments if word.partition("=")[0] not in keys]
    return f"lockstep train {shlex.join([*kept, *changed])}"


def _describe_model(search: LayoutSearch, name: str, gpus: int) -> str:
    sizes = search.sizes
    lines = [
        (
            "plan",
            f"{name} on {_format_count(gpus, 'GPU')} of {format_bytes(search.memory)}, on paper",
        ),
        (
            "model",
            f"{sizes.policy_parameters:,} parameters: {sizes.layers} layers, hidden size "
            f"{sizes.hidden:,}, "
            f"vocabulary {sizes.vocabulary_size:,}"
            + (
                f"; {sizes.adapters:,} more in adapters, the only trained parameters"
                if sizes.adapters
                else ""
            ),
        ),
    ]
    return summary_table(lines)


def _describe_time(search: LayoutSearch, estimate: MemoryEstimate, rates: DeviceRates) -> str:
    """Seconds of a step by phase."""
    processes = estimate.placement.processes
    engines = EngineCounts(max(1, processes.engines), processes.width, estimate.sequences)
    sent = 0 if estimate.sampler is None else estimate.sampler.weights
    time = StepTime.from_ranks(
        estimate.ranks, search.recipe.inference, engines, rates, sent, 2 * estimate.offloaded_bytes
    )
    lines: list[tuple[str, str]] = []
    for name, seconds in asdict(time).items():
        if seconds:
            lines.append((name, f"{seconds:,.3g} s"))
    what = "response" if time.generate else "row"
    return summary_table(
        [
            *lines,
            (f"a step, with every {what} at its maximum length", f"{time.total_seconds:,.3g} s"),
        ]
    )


def format_layout(parallel: Parallel) -> str:
    """A layout as text, such as dp 2 · tp 4 · cp 1."""
    return " · ".join(
        f"{name} {size}"
        for name, size in parallel.model_dump().items()
        if name in ("dp", "tp", "cp") or size > 1
    )


def describe_layouts(learner: LearnerSection, own: Mapping[str, LearnerSection]) -> str:
    """The layout of a learner as text, and the layouts of models with their own, by name."""
    return format_layout(learner.parallel) + "".join(
        f" ({name}: {format_layout(other.parallel)})" for name, other in own.items()
    )


def _name_layouts(estimate: MemoryEstimate) -> str:
    return describe_layouts(
        estimate.learner, {name: rank.learner for name, rank in estimate.own_layouts.items()}
    )


def _describe_memory(estimate: MemoryEstimate) -> str:
    """Lines about memory, by rank at its peak; other parts are not summed."""
    layouts = f"{_name_layouts(estimate)}, {estimate.learner.dtype}"
    lines = [("layout", layouts), ("placement", estimate.placement.describe())]
    for name, rank in estimate.ranks.items():
        peak = rank.peak_moment
        lines.append((name, f"{format_bytes(peak.total_bytes)} per rank, at the {peak.name}:"))
        for what, size in peak.parts.items():
            if size:
                lines.append(("", f"{format_bytes(size):>9} {what}"))
        if rank.on_host:
            lines.append(
                (
                    "",
                    f"{format_bytes(rank.on_host):>9} weights, gradients, moments in host memory",
                )
            )
    if estimate.sampler is not None:
        if estimate.sampler.weights:
            whose = "weights"
        else:
            whose = "weights (shared with the policy)"
        engines = _format_count(estimate.placement.processes.engines, "engine")
        lines.append(
            ("sampler", f"{format_bytes(estimate.sampler.total_bytes)} per GPU of {engines}:")
        )
        lines.append(("", f"{format_bytes(estimate.sampler.weights):>9} {whose}"))
        lines.append(("", f"{format_bytes(estimate.sampler.cache):>9} keys and values"))
        if estimate.sampler.seen:
            lines.append(
                (
                    "",
                    (
                        f"{format_bytes(estimate.sampler.seen):>9} token counts of responses, for "
                        "penalties"
                    ),
                )
            )
    for judge in estimate.judges:
        lines.append(
            (
                "judge",
                (
                    f"{format_bytes(judge.weights)} weights, {format_bytes(judge.cache)} keys and "
                    "values"
                ),
            )
        )
    lines.append(("together", f"{format_bytes(estimate.device_bytes)} on the most loaded GPU"))
    return summary_table(lines)


def _format_count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _render_layouts(search: LayoutSearch, gpus: int) -> str:
    estimates = map(search.estimate_layout, search.list_layouts(gpus))
    found = sorted((one for one in estimates if one is not None), key=rank_cuts)
    lines = [("layout", "a GPU holds")]
    lines += [
        (_name_layouts(one), f"{format_bytes(one.device_bytes):>11}") for one in found[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        lines.append(("", f"and {len(found) - _SHOWN} more"))
    return summary_table(lines)


def _describe_verdict(
    search: LayoutSearch,
    arguments: Sequence[str],
    gpus: int,
    own: MemoryEstimate | None,
    found: MemoryEstimate | None,
) -> str:
    memory = format_bytes(search.memory)
    if own is not None and search.fits_device(own):
        return (
            f"It fits: {format_bytes(own.device_bytes)} of {memory}. "
            f"{_render_command(arguments, cache_override(own))}"
        )
    asked = describe_layouts(
        search.recipe.learner, {role.name: role.learner for role in search.recipe.own_layouts}
    )
    if own is not None:
        begin = f"It does not fit: {format_bytes(own.device_bytes)} of {memory}."
    else:
        begin = f"The recipe asks for {asked}, not {_format_count(gpus, 'GPU')}."
    if found is None:
        return (
            f"{begin} No change makes it fit on {_format_count(gpus, 'GPU')}: use more GPUs or "
            "more "
            "memory."
        )
    command = _render_command(arguments, list_overrides(search.recipe, found))
    return f"{begin} This fits, {format_bytes(found.device_bytes)} of {memory}:\n{command}"
