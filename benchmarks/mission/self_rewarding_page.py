"""The section of Self-Rewarding and Meta-Rewarding on the mission's page, and its picture."""

from __future__ import annotations

from typing import Any

from benchmarks.mission.generation import describe_generation
from benchmarks.picture import LEFT, STYLE, WIDTH, Panel
from benchmarks.real_model import NAME

PARSED = 0.9
"""Share of verdicts that must be readable from a model that has learned to judge."""
CHANCE = 0.5
"""Accuracy of a judge that guesses; on the known judgments, the share of the more frequent
score.
"""
RUNS = {"self_rewarding": "Self-Rewarding", "meta_rewarding": "Meta-Rewarding"}
STAGES = {"raw": "the model as it comes", "warm_start": "warm start (SFT)", **RUNS}
METRICS = (
    "chosen_lengths",
    "reject_lengths",
    "chosen_generated_rewards",
    "rejected_generated_rewards",
    "rewards_chosen_mean",
    "rewards_rejected_mean",
    "bad_samples_per_GBS",
    "bad_ends_per_GBS",
    "preference_loss",
    "sft_loss",
)
"""The ten metrics of self-rewarding; each has a value in `train/` and one in `val/`."""

Interval = list[float | None]
"""Value, lower and upper end of a figure; None where nothing was measured."""


def describe(found: dict[str, Any]) -> list[str]:
    """The part's section of the page, in Markdown."""
    stages = found["stages"]
    head = (
        "| model | LLMBar verdicts | LLMBar accuracy | known scores | known comparisons | "
        "held-out reward |"
    )
    rows = [_describe_stage(STAGES[name], stage) for name, stage in stages.items()]
    runs_head = (
        "| run | steps | prompts with a pair | pairs of judgments learned from | verdicts parsed |"
    )
    runs = [_describe_run(RUNS[name], run) for name, run in found["runs"].items()]
    return [
        (
            f"SFT on {found['warm_start_rows']} short rows teaches {NAME} to judge; each iteration "
            "starts from it."
        ),
        (
            "The judge's question is short, and does not say how a verdict must look: that is what "
            "the warm start teaches."
        ),
        f"Figures have 95 % intervals over prompts. LLMBar is the {found['llmbar_rows']} rows of "
        "Natural and Adversarial_Manual with the fewest characters; a tie counts half.",
        f"Scores and comparisons are known for answers to {found['known_words']} words that no row "
        "is trained on; the reward is what a program finds right.",
        "",
        head,
        "|---|---:|---:|---:|---:|---:|",
        *rows,
        "",
        runs_head,
        "|---|---:|---:|---:|---:|",
        *runs,
        "",
        "The ten metrics, of the last step:",
        "",
        *_describe_metrics(found["runs"]),
        "",
        *_verdicts(found),
        describe_generation(found["generation"]),
    ]


def _describe_stage(title: str, stage: dict[str, Any]) -> str:
    asked, parsed = _parsed(stage)
    shown = [
        _show(stage["figures"].get(name))
        for name in ("llmbar", "judge_exact", "meta_judge_accuracy", "reward")
    ]
    return f"| {title} | {parsed} of {asked} | {' | '.join(shown)} |"


def _parsed(stage: dict[str, Any]) -> tuple[int, int]:
    """Verdicts on LLMBar that were asked for, and those that could be read."""
    counts = stage["llmbar_judgments"]
    return counts["judgments"], counts["judgments"] - counts["no_verdict"]


def _show(interval: Interval | None) -> str:
    if interval is None or interval[0] is None:
        return "–"
    value, low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _describe_run(title: str, run: dict[str, Any]) -> str:
    prompts = run["prompts"]
    verdicts = run["verdicts"]
    return (
        f"| {title} | {len(run['steps'])} | {run['pairs']} of {prompts} | {run['judge_pairs']} "
        f"| {run['parsed']} of {verdicts} |"
    )


def _describe_metrics(runs: dict[str, Any]) -> list[str]:
    """A table with a row for each metric."""
    columns = [(name, part) for name in runs for part in ("train", "val")]
    head = " | ".join(f"{RUNS[name]}, `{part}/`" for name, part in columns)
    last = {(name, part): _last(runs[name], part) for name, part in columns}
    rows = [
        (
            f"| `{metric}` | "
            f"{' | '.join(_show_number(last[column].get(metric)) for column in columns)} |"
        )
        for metric in METRICS
    ]
    return [f"| metric | {head} |", f"|---|{'---:|' * len(columns)}", *rows]


def _last(run: dict[str, Any], part: str) -> dict[str, float]:
    """The last value of each metric of a part of a run."""
    rows = run["steps"] if part == "train" else run["validations"]
    return {
        name.partition("/")[2]: value
        for row in rows
        for name, value in row.items()
        if name.startswith(part)
    }


def _show_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _verdicts(found: dict[str, Any]) -> list[str]:
    """What holds and what does not."""
    raw = found["stages"]["raw"]
    warm = found["stages"]["warm_start"]
    before = _parsed(raw)
    after = _parsed(warm)
    lines = [
        say(
            after[1] >= PARSED * after[0],
            f"after the warm start the model's verdicts can be read: {after[1]} of {after[0]} on "
            f"LLMBar, and {before[1]} before",
        ),
        say(
            (warm["figures"]["judge_exact"][1] or 0) > CHANCE,
            "after the warm start it gives the known scores more often than a guess would",
        ),
    ]
    for name, title in STAGES.items():
        if name != "raw":
            lines.append(_say_accuracy(title, found["stages"][name]["figures"]))
    lines += [_compare_rewards(found["stages"], name) for name in RUNS]
    lines += [_say_metrics(found["runs"]), _say_judge_pairs(found["runs"]["meta_rewarding"])]
    return lines


def _say_accuracy(title: str, figures: dict[str, Interval]) -> str:
    """Whether a judge does better than chance on LLMBar, and how often it cannot tell two responses
    apart.
    """
    accuracy = figures["llmbar"]
    ties = figures["ties"]
    return say(
        (accuracy[1] or 0) > CHANCE,
        (
            f"{title}: its judge is better than chance on LLMBar; it ties in {ties[0] or 0:.0%} of "
            "the rows"
        ),
    )


def say(holds: bool, claim: str) -> str:
    """A line that says whether a claim holds."""
    return f"- **{'Holds' if holds else 'Does not hold'}**: {claim}."


def _compare_rewards(stages: dict[str, Any], name: str) -> str:
    """Compares the true quality of held-out answers before and after an iteration."""
    before = stages["warm_start"]["figures"]["reward"]
    after = stages[name]["figures"]["reward"]
    return say(
        after[1] > before[0],
        f"one iteration of {RUNS[name]} makes held-out answers better, beyond the interval",
    )


def _say_metrics(runs: dict[str, Any]) -> str:
    """Looks for each of the ten metrics in `train/` and `val/` of each run."""
    missing = [
        f"{part}/{metric} of {RUNS[name]}"
        for name, run in runs.items()
        for part in ("train", "val")
        for metric in METRICS
        if metric not in _last(run, part)
    ]
    rest = f"; not there: {', '.join(missing)}" if missing else ""
    return say(
        not missing, f"the ten metrics are logged by their names in `train/` and `val/`{rest}"
    )


def _say_judge_pairs(run: dict[str, Any]) -> str:
    """Whether the meta-judge showed skill, so that pairs of judgments were learned from."""
    last = run["steps"][-1]
    consistent = last.get("meta_judge/consistent", 0.0)
    luck = last.get("meta_judge/luck", 1.0)
    return say(
        run["judge_pairs"] > 0,
        "the meta-judge shows skill, so that its pairs of judgments are learned from: "
        f"{run['judge_pairs']} were, and {run['left_out']} were left out; both orders agree in "
        f"{consistent:.0%} of the last step's comparisons, and a meta-judge that reads nothing "
        f"would be so consistent with a chance of {luck:.1e}",
    )


def draw(found: dict[str, Any]) -> str:
    """The part's picture: figures of each stage with their intervals, as an SVG."""
    panel = Panel(58, 300, 0.0, 1.0, 4)
    series = {
        "held": ("reward", "held-out reward"),
        "critic": ("judge_exact", "known scores given"),
        "gap": ("llmbar", "accuracy on LLMBar"),
    }
    parts = [
        f'<text class="title" x="{LEFT}" y="20">{NAME} as its own judge, with 95 % intervals</text>'
    ]
    parts += [panel.draw_level(level / 4, f"{level / 4:.2f}") for level in range(5)]
    parts.append(panel.draw_level(CHANCE, "", "bound", "a guess"))
    for number, (style, (metric, title)) in enumerate(series.items()):
        parts.append(f'<text class="{style}fill" x="{LEFT + 190 * number}" y="42">● {title}</text>')
        for place, stage in enumerate(found["stages"].values()):
            x = panel.x(place + 0.35 + 0.15 * number)
            parts += _draw_interval(panel, x, stage["figures"].get(metric), style)
    parts += [
        (
            f'<text class="small" x="{panel.x(place + 0.5):.1f}" y="320" '
            f'text-anchor="middle">{title}</text>'
        )
        for place, title in enumerate(STAGES.values())
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 330" role="img" '
        f'aria-label="A real model as its own judge">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _draw_interval(panel: Panel, x: float, interval: Interval | None, style: str) -> list[str]:
    """A dot with a bar; nothing where nothing was measured."""
    if interval is None or interval[0] is None:
        return []
    value, low, high = (panel.y(end) for end in interval if end is not None)
    return [
        f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>',
        f'<circle class="{style}fill" cx="{x:.1f}" cy="{value:.1f}" r="4"/>',
    ]
