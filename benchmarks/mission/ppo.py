"""Part 1: PPO with a critic on a real model: torch, Megatron, layouts of both, and values without
the right shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.mission.opposites import HELD_OUT, TRAINED, write_rows
from benchmarks.mission.programs import Program, run_all
from benchmarks.picture import STYLE, WIDTH, Panel
from benchmarks.real_model import NAME
from lockstep.report.held_out import MetricFigure
from lockstep.report.log import read_metrics

TITLE = "PPO with a critic: torch and Megatron"

RECIPE = Path(__file__).with_name("ppo.yaml")
FEW = 4
"""Steps of a layout, which is held against the same steps on one process."""
BAND = 0.1
"""Mean difference of two runs' sampled rewards up to which they are the same curve; a step samples
16 responses.
"""
LEVEL = 0.05
"""Chance, by a sign test over steps, below which one run is called ahead of another."""
LAST = 5
"""Steps at the end of a run whose rewards are averaged."""
SHOWN = (
    "train/reward",
    "validation/reward",
    "critic/explained_variance",
    "agreement/max_abs_logprob_diff",
)


@dataclass(frozen=True)
class Arm:
    """A run.

    Attributes:
        name: Its name on the page.
        options: What it sets.
        steps: Its steps; None: all of the recipe.
        module: The program that trains.
        processes: Processes that compute at the same time.
    """

    name: str
    options: tuple[str, ...] = ()
    steps: int | None = None
    module: str = "lockstep"
    processes: int = 1


WARMUP = 6
CRITIC_FIRST = ("critic.lr=2.0e-4", f"ppo.critic_warmup_steps={WARMUP}", "run.max_steps=20")
"""A critic that has learned something before the policy moves: without it, where its values stand
hardly shows.
"""
RIGHT = "torch, critic first"
LATE = "torch, critic first, values one token late"

ARMS = (
    Arm("torch"),
    Arm("megatron", ("learner.backend=megatron",)),
    Arm(RIGHT, CRITIC_FIRST),
    Arm(LATE, CRITIC_FIRST, module="benchmarks.unshifted"),
    Arm("torch, dp 2", ("learner.parallel.dp=2",), FEW, processes=2),
    Arm("torch, tp 3", ("learner.parallel.tp=3",), FEW, processes=3),
    Arm("megatron, tp 3", ("learner.backend=megatron", "learner.parallel.tp=3"), FEW, processes=3),
)


def measure(model: Path, work: Path, jobs: int) -> dict[str, Any]:
    """Trains all arms, or what is missing of them. Returns curves by the name of the arm."""
    work.mkdir(parents=True, exist_ok=True)
    write_rows(work / "train.jsonl", TRAINED)
    write_rows(work / "validation.jsonl", HELD_OUT)
    alone = [_program(arm, model) for arm in ARMS if arm.processes == 1]
    seconds = run_all(alone, work, jobs)
    seconds |= run_all([_program(arm, model) for arm in ARMS if arm.processes > 1], work, 1)
    return {
        arm.name: {"seconds": seconds[_place(arm)], **_curves(work / _place(arm))} for arm in ARMS
    }


def _program(arm: Arm, model: Path) -> Program:
    steps = () if arm.steps is None else (f"run.max_steps={arm.steps}",)
    where = (f"model.path={model}", f"run.folder={_place(arm)}")
    return Program(_place(arm), (arm.module, "train", str(RECIPE), *where, *arm.options, *steps))


def _place(arm: Arm) -> str:
    return arm.name.replace(", ", "_").replace(" ", "_")


def _curves(run: Path) -> dict[str, list[list[float]]]:
    """The shown metrics of a run, each a list of steps and values."""
    rows = read_metrics(run)
    return {name: [[row["step"], row[name]] for row in rows if name in row] for name in SHOWN}


def describe(found: dict[str, Any]) -> list[str]:
    """The part's section of the page, in Markdown."""
    head = (
        "| run | steps | sampled reward, first and last 5 | held-out reward | critic explains "
        "| largest gap | minutes |"
    )
    rows = [_row(name, curves) for name, curves in found.items()]
    verdicts = [
        _verdict("Torch and Megatron learn the same curve", found["torch"], found["megatron"]),
        *(
            _verdict(f"{name} learns what one process learns", found[name.split(",")[0]], curves)
            for name, curves in found.items()
            if "dp" in name or "tp" in name
        ),
        _shift(found[RIGHT], found[LATE]),
    ]
    return [head, "|---|---:|---:|---:|---:|---:|---:|", *rows, "", *verdicts]


def _row(name: str, curves: dict[str, Any]) -> str:
    sampled = [value for _, value in curves["train/reward"]]
    held = [value for _, value in curves["validation/reward"]]
    return (
        f"| {name} | {len(sampled)} | {fmean(sampled[:LAST]):.3f} → {fmean(sampled[-LAST:]):.3f} "
        f"| {held[0]:.3f} → {held[-1]:.3f} | {_explained(curves):.2f} "
        f"| {_largest_gap(curves)} | {curves['seconds'] / 60:.1f} |"
    )


def _largest_gap(curves: dict[str, Any]) -> str:
    """Largest difference of a token's two log-probabilities, nats."""
    largest = max(gap for _, gap in curves["agreement/max_abs_logprob_diff"])
    return f"{largest:.1e}" if largest else "0"


def _explained(curves: dict[str, Any]) -> float:
    """Share of the returns' variance that the critic explains, median of the later half of the
    steps.
    """
    values = [value for _, value in curves["critic/explained_variance"]]
    return median(values[len(values) // 2 :])


def _verdict(claim: str, one: dict[str, Any], other: dict[str, Any]) -> str:
    """Compares the rewards of the steps that both runs have."""
    pairs = list(zip(one["train/reward"], other["train/reward"], strict=False))
    gaps = [abs(mine - theirs) for (_, mine), (_, theirs) in pairs]
    equal = sum(gap == 0 for gap in gaps)
    holds = fmean(gaps) <= BAND
    return (
        f"- **{'Holds' if holds else 'Does not hold'}**: {claim}: equal rewards in {equal} of "
        f"{len(gaps)} steps, {fmean(gaps):.3f} apart on average (at most {BAND})."
    )


def _shift(right: dict[str, Any], late: dict[str, Any]) -> str:
    """Compares the value of the state before a token with that after it, by the rewards of the
    policy's steps.
    """
    pairs = list(zip(_policy_steps(right), _policy_steps(late), strict=True))
    ahead = sum(mine > theirs for mine, theirs in pairs)
    behind = sum(mine < theirs for mine, theirs in pairs)
    chance = sum(comb(ahead + behind, wins) for wins in range(ahead, ahead + behind + 1)) / 2 ** (
        ahead + behind
    )
    means = [fmean(rewards) for rewards in zip(*pairs, strict=True)]
    word = "Holds" if chance < LEVEL else "Does not hold"
    return (
        f"- **{word}**: the right shift learns faster, from a critic that was trained first. With "
        f"the value of the state before a token the sampled reward is higher in {ahead} of "
        f"{len(pairs)} steps and lower in {behind} than with the value after it: {means[0]:.3f} "
        f"and {means[1]:.3f} on average. One seed."
    )


def _policy_steps(curves: dict[str, Any]) -> list[float]:
    """Rewards sampled by a policy that had been trained: those after the critic's warm-up and the
    step after it.
    """
    return [value for step, value in curves["train/reward"] if step > WARMUP + 1]


def draw(found: dict[str, Any]) -> str:
    """The part's picture: sampled and held-out reward of the runs of all steps, as an SVG."""
    last = int(max(curves["train/reward"][-1][0] for curves in found.values()))
    panel = Panel(36, 300, 0.0, 1.0, last)
    parts = [
        (
            f'<text class="title" x="64" y="20">PPO on {NAME}: sampled reward (lines), held-out '
            "reward (dots)</text>"
        )
    ]
    parts += [panel.draw_level(level / 4, f"{level / 4:.2f}") for level in range(5)]
    for style, (name, place) in {
        "held": ("torch", 200),
        "sampled": ("megatron", 222),
        "critic": (RIGHT, 244),
        "gap": (LATE, 266),
    }.items():
        sampled, held = (
            [MetricFigure(int(step), value) for step, value in found[name][key]]
            for key in SHOWN[:2]
        )
        parts.append(panel.draw_line(sampled, style))
        parts += [
            (
                f'<circle class="{style}fill" cx="{panel.x(point.step):.1f}" '
                f'cy="{panel.y(point.value):.1f}" r="3.2"/>'
            )
            for point in held
        ]
        parts.append(f'<text class="{style}fill" x="420" y="{place}">{name}</text>')
    parts += [
        (
            f'<text class="small" x="{panel.x(step):.1f}" y="320" '
            f'text-anchor="middle">{step or "step 0"}</text>'
        )
        for step in range(0, last + 1, 4)
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 330" role="img" '
        'aria-label="PPO on a real model, torch beside '
        f'Megatron">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )
