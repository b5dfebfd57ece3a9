"use strict";
/* A sweep: bands over the runs of each group, and the table of last values. */

const groupOf = (number) => state.sweep.groups.findIndex((group) => group.runs.includes(number));
/** A run's colour; runs of a sweep have that of their group. */
const colourOfRun = (number) => runColour(state.sweep ? groupOf(number) : number);

/** The groups of which a run is switched on, with their colours. */
const shownGroups = () => (state.sweep?.groups ?? [])
  .map((group, number) => ({ ...group, color: runColour(number) }))
  .filter((group) => group.runs.some((run) => state.shown.has(run)));

/** The mean of each group over its runs, with the interval of that mean as a band. */
function bandTraces(metric) {
  return shownGroups().filter((group) => group.bands[metric]).flatMap((group) => {
    const { step, mean, low, high, n } = group.bands[metric];
    const edge = { x: step, mode: "lines", silent: true, line: { color: group.color, width: 0 } };
    const band = `color-mix(in srgb, ${group.color} 22%, transparent)`;
    return [
      { ...edge, y: high, name: `${group.name}, upper end`, band },
      { ...edge, y: low, name: `${group.name}, lower end` },
      { x: step, y: mean, name: `${group.name}, mean of ${n}`, mode: "lines", line: { color: group.color, width: 2.4 } },
    ];
  });
}

/** What the bands are, above the curves. */
const bandSentence = () => `Thick lines are means over the runs of a group, which differ in the seed alone; bands are ${Math.round(100 * state.sweep.level)} % Student-t intervals of the mean, as far as all of them have got; thin lines are single runs.`;

const spreadText = (spread) => (spread === undefined ? "–" : `${shown(spread.mean)}${spread.low === null ? "" : ` [${shown(spread.low)}, ${shown(spread.high)}]`} · n = ${spread.count}`);

function sweepView() {
  if (!state.sweep) return [element("p.empty", {}, "These runs are not of a sweep.")];
  const { groups, metrics, runs } = state.sweep;
  const swatch = (number) => {
    const made = element("span.swatch");
    made.style.background = runColour(number);
    return made;
  };
  const groupRows = groups.map((group, number) => [
    element("span.entry", {}, swatch(number), visible(group.name)),
    `${group.finished} of ${group.runs.length}`,
    ...metrics.map((metric) => spreadText(group.final[metric])),
  ]);
  const runRows = runs.map(({ final, state: word }, number) => [
    visible(state.runs[number].name),
    word,
    ...metrics.map((metric) => shown(final[metric])),
  ]);
  return [
    section("Last values by group",
      element("p.lead", {}, `Means over finished runs with ${Math.round(100 * state.sweep.level)} % Student-t intervals over seeds.`),
      plainTable(["group", "finished", ...metrics], groupRows)),
    section("Runs", plainTable(["run", "state", ...metrics], runRows)),
  ];
}
