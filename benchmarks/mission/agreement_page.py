"""The section of part 4 on the mission's page, and its picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.picture import STYLE, WIDTH, Panel
from benchmarks.real_model import NAME
from lockstep.report.held_out import MetricFigure

LOWEST = 1e-5
HIGHEST = 1.0
"""Edges of the picture, nats; a gap of zero is drawn at the lower one."""


def describe(found: Mapping[str, Any]) -> list[str]:
    """The part's section of the page, in Markdown."""
    return [
        *_describe_pairs(found),
        "",
        *_describe_cells(found),
        "",
        *_describe_faults(found["planted"]),
        "",
        *_judge_tables(found["tables"]),
        *_judge_certificate(found["certificate"]),
        judge_depths(found["depth"]),
        judge_faults(found["planted"]),
    ]


def write_nats(value: float) -> str:
    """A gap in few digits; zero is exact."""
    return f"{value:.1e}" if value else "0"


def _hold(holds: bool, text: str) -> str:
    return f"- **{'Holds' if holds else 'Does not hold'}**: {text}"


def _describe_pairs(found: Mapping[str, Any]) -> Iterator[str]:
    """The gaps of each pair in each table, over the tokens that either side drew."""
    yield (
        "`lockstep doctor table`: the gap |Δ log-probability| of a token, nats, over all "
        "measured cells of a table."
    )
    yield (
        "Of A vs B, B drew the tokens of the first three columns; a learner over ranks, and "
        "Megatron, draw none."
    )
    yield ""
    yield (
        "| A vs B | table | verdicts | B's tokens | largest | mean | A's tokens | largest | mean |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
    for table in found["tables"].values():
        for one in table["pairs"]:
            sides = [_write_figures(one["drawn"].get(side)) for side in ("infer", "train")]
            yield (
                f"| {' vs '.join(one['pair'])} | {table['title']} | {_count(one['verdicts'])} | "
                f"{' | '.join(sides)} |"
            )


def _write_figures(figures: Mapping[str, float] | None) -> str:
    if figures is None:
        return "– | – | –"
    return (
        f"{figures['tokens']:,.0f} | {write_nats(figures['largest'])} | "
        f"{write_nats(figures['mean'])}"
    )


def _count(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "none"


def _describe_cells(found: Mapping[str, Any]) -> Iterator[str]:
    """The cells of all tables, measured or left out, and the tables that were not measured."""
    budgets = [
        f"{one['title']} {one['budget_s'] / 60:.0f} minutes"
        for one in found["tables"].values()
        if one["budget_s"]
    ]
    yield f"A table begins no cell that would not end within its budget: {', '.join(budgets)}."
    yield ""
    yield "| table | length | data | method | batch | responses scored | verdicts of all pairs |"
    yield "|---|---:|---|---|---:|---:|---|"
    for table in found["tables"].values():
        for cell in table["cells"]:
            what = f"{cell['length']:,} | {cell['data']} | {cell['method']} | {cell['batch']}"
            outcome = _count(cell["verdicts"]) if cell["state"] == "measured" else cell["state"]
            yield f"| {table['title']} | {what} | {cell['scored'] or '–'} | {outcome} |"
    yield ""
    for command in dict.fromkeys(found["not_measured"].values()):
        titles = [title for title, its in found["not_measured"].items() if its == command]
        yield f"Not measured yet by `{command}`: {'; '.join(titles)}."
    refused = dict.fromkeys(one for table in found["tables"].values() for one in table["refused"])
    if refused:
        yield ""
        yield f"Refused: {', '.join(refused)}."


def _describe_faults(planted: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "A fault is planted in a line of an engine's code, and `lockstep doctor locate` "
        "compares that engine with"
    )
    yield "plain `transformers` in fp32."
    yield ""
    yield (
        "| engine | fault | planted at | gap, nats | module | located, innermost line first | "
        "true | undone | wrong |"
    )
    yield "|---|---|---|---:|---|---|---|---:|---|"
    for one in planted:
        named = one["named"][(one["rank"] or 1) - 1] if one["named"] else ["nothing"]
        lines = " ← ".join(f"`{line}`" for line in named)
        true = {None: "no", 1: "yes"}.get(one["rank"], f"suspect {one['rank']}")
        yield (
            f"| {one['engine'].replace('_', ' ')} ({one['side']}) | {one['what']} | "
            f"`{one['file']}:{one['line']}` | {write_nats(one['gap'])} | `{one['cut']}` | {lines} "
            f"| {true} | {one['removed']:.0%} | {', '.join(one['wrong']) or 'neither'} |"
        )


def _judge_tables(tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A verdict for each table, with a reason of each kind if it does not hold; whether repeats
    gave the same bits.
    """
    for table in tables.values():
        yield judge_table(table)
        kinds = dict[str, list[str]]()
        for reason in (reason for cell in table["cells"] for reason in cell["reasons"]):
            kinds.setdefault(re.sub(r"[\d.e-]+", "#", reason), []).append(reason)
        yield from (
            f"    - {len(reasons)} of this kind: {reasons[0]}." for reasons in kinds.values()
        )
    for table in tables.values():
        yield judge_repeats(table)


def judge_table(table: Mapping[str, Any]) -> str:
    """Whether every pair passed in every cell that was measured."""
    total = sum((Counter(cell["verdicts"]) for cell in table["cells"]), Counter[str]())
    measured = sum(cell["state"] == "measured" for cell in table["cells"])
    count = (
        f"{total['PASS']} of {total.total()} verdicts are PASS, in {measured} of "
        f"{len(table['cells'])} cells"
    )
    text = f"{table['title']}: all backends agree with each other. {count}."
    if total["PASS"] < total.total() and not total["FAIL"]:
        return f"- **Not shown by so few tokens**: {text}"
    return _hold(0 < total.total() == total["PASS"], text)


def judge_repeats(table: Mapping[str, Any]) -> str:
    """Whether the same request gave the same bits again."""
    counts = table["repeats"]
    holds = bool(counts) and all(times == bitwise for times, bitwise in counts.values())
    said = ", ".join(f"{name} {bitwise} of {times}" for name, (times, bitwise) in counts.items())
    return _hold(holds, f"{table['title']}: the same request gives the same bits again: {said}.")


def _judge_certificate(certificate: Mapping[str, Any]) -> Iterator[str]:
    """A verdict for each type; both sides are the torch learner and sampler with the kernels of
    exactness.
    """
    controls = {one["dtype"]: one for one in certificate["controls"]}
    for dtype, own in certificate["types"].items():
        yield judge_type(dtype, own, controls.get(dtype))
    again = certificate["sampled_again"]
    text = (
        f"`lockstep certify`: sampled again in other batches, {again['changed']:,} of "
        f"{again['tokens']:,} tokens change; level {certificate['level']}."
    )
    yield _hold(again["tokens"] > 0 == again["changed"], text)


def judge_type(dtype: str, own: Mapping[str, int], control: Mapping[str, Any] | None) -> str:
    """Whether no token differs in a type, and the comparison sees a weight that is moved by one
    unit.
    """
    holds = own["tokens"] > 0 == own["mismatches"] and control is not None and control["seen"] > 0
    seen = (
        "no weight was moved"
        if control is None
        else f"{control['seen']} of {control['tokens']} differ"
    )
    return _hold(
        holds,
        f"`lockstep certify` in {dtype}: {own['tokens']:,} tokens compared, {own['mismatches']:,} "
        f"differ. With one weight moved by one unit in the last place: {seen}.",
    )


def judge_depths(depth: Mapping[str, Any]) -> str:
    """Whether exactness leaves no gap at any depth."""
    exact = depth["depth_exact"]
    usual = depth["depth_usual"]
    last = max(first for first, *_ in exact["windows"])
    early = usual["windows"][0]
    late = _drop_rest(usual["windows"])[-1]
    text = (
        f"in bf16 exactness removes the gap at every depth. Exactness on: {exact['differ']:,} of "
        f"{exact['tokens']:,} tokens differ, down to position {last:,}. Off: {usual['differ']:,} "
        f"of {usual['tokens']:,} differ, mean {write_nats(early[3])} nats in the first window of "
        f"positions and {write_nats(late[3])} in the last whole one, largest "
        f"{write_nats(max(one[2] for one in usual['windows']))}."
    )
    return _hold(exact["tokens"] > 0 == exact["differ"] and usual["differ"] > 0, text)


def judge_faults(planted: Sequence[Mapping[str, Any]]) -> str:
    """Whether each edited line is among those of the first suspect, and float64 says that this
    engine is wrong.
    """
    located = sum(
        one["rank"] == 1 and one["wrong"] == [one["engine"].replace("_", " ")] for one in planted
    )
    text = (
        f"{located} of {len(planted)} faults are located by line, and float64 says which "
        "engine is wrong."
    )
    return _hold(0 < located == len(planted), text)


def _drop_rest(windows: Sequence[Any]) -> Sequence[Any]:
    """The windows but the last one, which has only the few tokens that are left over."""
    return windows[:-1]


def draw(found: Mapping[str, Any]) -> str:
    """The part's picture: largest and mean gap in bf16 by depth, as an SVG."""
    exact, usual = (
        _drop_rest(found["depth"][name]["windows"]) for name in ("depth_exact", "depth_usual")
    )
    last = int(max(first for first, *_ in (*exact, *usual)))
    panel = Panel(36, 300, LOWEST, HIGHEST, last, logarithmic=True)
    parts = [
        (
            f'<text class="title" x="64" y="20">{NAME} in bf16: |Δ log-probability| by position, '
            "nats</text>"
        )
    ]
    parts += [
        panel.draw_level(10.0**power, "0" if power == -5 else f"1e{power}")
        for power in range(-5, 1)
    ]
    lines = {
        "sampled": ("exactness off, largest", [MetricFigure(one[0], one[2]) for one in usual]),
        "critic": ("exactness off, mean", [MetricFigure(one[0], one[3]) for one in usual]),
        "gap": ("exactness on, largest", [MetricFigure(one[0], one[2]) for one in exact]),
    }
    for style, (label, points) in lines.items():
        value = points[len(points) // 2].value
        text = f"{label}: 0, to the bit" if not any(point.value for point in points) else label
        parts.append(panel.draw_line(points, style))
        parts.append(
            f'<text class="{style}fill" x="{panel.x(last / 2):.1f}" '
            f'y="{panel.y(value) - 12:.1f}">{text}</text>'
        )
    step = 2 ** max(last.bit_length() - 3, 0)
    parts += [
        f'<text class="small" x="{panel.x(place):.1f}" y="320" text-anchor="middle">'
        f"{f'{place:,}' if place else 'position 0'}</text>"
        for place in range(0, last + 1, step)
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 330" role="img" '
        'aria-label="Gap of sampler and learner by depth, exactness on and '
        f'off">\n<style>{STYLE}</style>\n{body}\n'
        f"</svg>\n"
    )
