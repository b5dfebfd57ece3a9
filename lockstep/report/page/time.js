"use strict";
/* Where the time of a step went: seconds per phase, stacked, and each phase's share. */

function timeView() {
  const timed = state.runs.map((run, number) => ({ ...run, number })).filter((run) => Object.keys(run.timings).length);
  if (!timed.length) return [element("p.empty", {}, "No step has been timed yet.")];
  return timed.map((run) =>
    section(
      state.runs.length > 1 ? run.name : "Seconds per step",
      element("figure.card", {}, new Chart(() => phaseTraces(run), () => ({ height: 300, showlegend: true, yaxis: { type: "linear", title: { text: "s" } } })).place),
      shareTable(run),
    ),
  );
}

/** One area per phase; a phase that a step did not have took no time in it. */
function phaseTraces(run) {
  const steps = [...new Set(Object.values(run.timings).flatMap((phase) => phase.step))].sort((a, b) => a - b);
  return phases(run).map(([name, phase], i) => {
    const seconds = new Map(phase.step.map((step, at) => [step, phase.value[at] ?? 0]));
    const color = runColour(i);
    return {
      x: steps,
      y: steps.map((step) => seconds.get(step) ?? 0),
      name,
      stackgroup: "phases",
      line: { width: 0.5, color, shape: "hvh" },
      hovertemplate: "%{y:.3f} s",
    };
  });
}

const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
const sorted = (run) => Object.entries(run.timings).sort((a, b) => total(b[1].value) - total(a[1].value));
const isBeside = ([name]) => name.startsWith("beside/"); // went on while phases did: no part of the time of a step
const phases = (run) => sorted(run).filter((timing) => !isBeside(timing));

function shareTable(run) {
  const all = total(phases(run).flatMap(([, phase]) => phase.value));
  const rows = phases(run).map(([name, phase]) => {
    const seconds = total(phase.value);
    const share = (100 * seconds) / all;
    const bar = element("span.bar");
    bar.style.width = `${share}%`;
    return [name, shown(seconds), shown(seconds / phase.value.length), `${share.toFixed(1)} %`, element("span.track", {}, bar)];
  });
  const beside = sorted(run).filter(isBeside).map(([name, { value }]) => [name, shown(total(value)), shown(total(value) / value.length), "", ""]);
  return plainTable(["phase", "seconds", "per step that had it", "share", ""], [...rows, ["all", shown(all), "", "", ""], ...beside]);
}
