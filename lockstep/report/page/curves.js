"use strict";
/* Curves over steps: cards of charts that are drawn when they come into sight, all zoomed together. */

const HEADLINES = [
  "validation/accuracy", "validation/reward", "validation/loss", "validation/acc", "train/reward", "train/shaped_reward", "train/kl",
  "train/response_length", "train/loss", "train/acc", "policy/loss", "policy/entropy", "policy/grad_norm", "critic/loss", "critic/explained_variance", "agreement/token_mult_prob_error",
];
const GROUPS = ["train", "validation", "val", "policy", "critic", "agreement", "refit"];

/** An exponential mean that forgets its beginning's bias; gaps stay gaps and are not counted. */
function smoothed(values, weight) {
  let total = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return total / mass;
  });
}

/** A metric of all runs that are switched on, as traces, with the ends of its interval as dotted lines; smoothed ones lie over a faint copy of what was logged. */
function metricTraces(metric) {
  return shownRuns()
    .filter((run) => run.metrics[metric])
    .flatMap((run) => {
      const { step, value } = run.metrics[metric];
      const line = { color: runColour(run.number), width: 1.6 };
      const common = { x: step, type: "scatter", mode: step.length > 1 ? "lines" : "markers", connectgaps: false, line };
      const logged = { ...common, y: value, name: run.name, hovertemplate: "%{y:.5g}<extra>" + hoverName(run) + "</extra>" };
      const ends = ["low", "high"].map((end) => run.metrics[`${metric}_${end}`]).filter(Boolean);
      const interval = ends.map((own) => ({ ...logged, x: own.step, y: own.value, opacity: 0.5, line: { ...line, width: 1, dash: "dot" } }));
      if (state.smoothing === 0) return [logged, ...interval];
      return [
        { ...logged, opacity: 0.25, hoverinfo: "skip", hovertemplate: null },
        { ...logged, y: smoothed(value, state.smoothing) },
      ];
    });
}

/** A run's name where a plotting library reads a little HTML of its own: its signs taken out. */
const hoverName = (run) => (state.runs.length > 1 ? run.name.replace(/[<>&%{}]/g, "") : "");

/** Zooms the other charts to the steps that one was zoomed to; a double click shows all steps again. */
Chart.zoomed = (source, change) => {
  const range = change["xaxis.autorange"] ? null : change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
  if (range !== null && range[0] === undefined) return;
  state.steps = range;
  Chart.all.filter((chart) => chart !== source).forEach((chart) => chart.redraw());
};

Chart.common = () => ({
  xaxis: { range: state.steps ?? undefined, autorange: state.steps === null },
  yaxis: { type: state.logarithmic ? "log" : "linear" },
});

/** A chart of a metric with its name, and what of it cannot be drawn. */
function metricCard(metric, note = "") {
  const gaps = shownGaps(metric);
  const small = [note, gaps ? `${gaps} values are not finite and left out` : ""].filter(Boolean).join(" · ");
  return element(
    "figure.card",
    { "data-metric": metric },
    element("figcaption", {}, element("span.name", {}, metric), small ? element("small", {}, small) : ""),
    new Chart(() => metricTraces(metric)).place,
  );
}

const shownGaps = (metric) =>
  state.runs.reduce((gaps, run) => gaps + (run.metrics[metric]?.value.filter((value) => value === null).length ?? 0), 0);

/** All metrics but the ends of intervals, which are drawn in the chart of theirs. */
function metricNames() {
  const names = new Set(state.runs.flatMap((run) => Object.keys(run.metrics)));
  return [...names].filter((name) => !names.has(name.replace(/_(low|high)$/, "")) || !/_(low|high)$/.test(name));
}

function curvesView() {
  const names = metricNames();
  const prefix = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "other");
  const prefixes = [...new Set([...GROUPS, ...names.map(prefix)])];
  const groups = [
    ["headlines", HEADLINES.filter((name) => names.includes(name))],
    ...prefixes.map((group) => [group, names.filter((name) => prefix(name) === group)]),
  ].filter(([, members]) => members.length);
  if (!groups.length) return [element("p.empty", {}, "No step has been logged yet.")];
  return [
    curveControls(),
    ...groups.map(([group, members], i) =>
      element(
        "details.group",
        i < 2 ? { open: "" } : {},
        element("summary", {}, group, element("small", {}, ` ${members.length}`)),
        element("div.cards", {}, ...members.map((name) => metricCard(name))),
      ),
    ),
  ];
}

function curveControls() {
  const amount = element("output", {}, "0");
  const redraw = oncePerFrame(Chart.refreshAll);
  const smoothing = (event) => {
    state.smoothing = Number(event.target.value);
    amount.textContent = String(state.smoothing);
    redraw();
  };
  const logarithmic = (event) => {
    state.logarithmic = event.target.checked;
    redraw();
  };
  const search = (event) => showMatching(event.target.value);
  return element(
    "div.controls",
    {},
    element("label", {}, "Smoothing ", element("input", { id: "smoothing", type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: smoothing }), amount),
    element("label", {}, element("input", { id: "logarithmic", type: "checkbox", onchange: logarithmic }), " logarithmic"),
    element("input", { type: "search", placeholder: "find a metric…", "aria-label": "show metrics whose name holds", oninput: search }),
    element("span.hint", {}, "drag to zoom all curves, double-click to see all steps"),
  );
}

/** Shows the cards whose metric's name holds a text, in opened groups. */
function showMatching(text) {
  for (const group of document.querySelectorAll("#curves details")) {
    const cards = [...group.querySelectorAll("figure")];
    cards.forEach((card) => (card.hidden = !card.dataset.metric.includes(text.trim())));
    group.hidden = cards.every((card) => card.hidden);
    if (text.trim()) group.open = true;
  }
}

const AGREEMENT = {
  token_mult_prob_error: ["mean of e^|Δ| over tokens", 1],
  max_abs_logprob_diff: ["largest |Δ| of a token, nats", 0],
  sampler_kl_k1: ["KL(sampler ‖ learner) by k1, nats per token", 0],
  sampler_kl_k3: ["KL(sampler ‖ learner) by k3, nats per token", 0],
  sequence_ess: ["effective share of sequences under importance weights", 1],
  bound: ["what the mean of e^|Δ| may be", 1],
  breach: ["1 where the bound is broken", 0],
  weights_age: ["versions that the sampler's weights lag behind", 0],
  weight: ["mean importance weight of a token", 1],
  sequences_masked: ["sequences left out because the two disagreed", 0],
};

/** The metrics of agreement: how far each run ever was from the ideal, and all curves. */
function agreementView() {
  const present = Object.keys(AGREEMENT).filter((name) => metricNames().includes(`agreement/${name}`));
  if (!present.length) return [element("p.empty", {}, "This run has no sampler that its learner could disagree with.")];
  const worst = present.flatMap((name) => state.runs.map((run) => worstRow(run, name)).filter(Boolean));
  return [
    element("p.lead", {}, "Δ is the learner's log-probability of a sampled token less the sampler's. Both should be the same policy."),
    ...state.runs.filter((run) => run.agreement).map((run) => element("p.lead.verdict", {}, state.runs.length > 1 ? `${run.name}: ${run.agreement}` : run.agreement)),
    plainTable(["measure", ...(state.runs.length > 1 ? ["run"] : []), "ideal", "farthest from it", "at step", "last"], worst),
    element("div.cards", {}, ...present.map((name) => metricCard(`agreement/${name}`, `${AGREEMENT[name][0]}; ideal ${AGREEMENT[name][1]}`))),
  ];
}

function worstRow(run, name) {
  const series = run.metrics[`agreement/${name}`];
  if (!series) return null;
  const [, ideal] = AGREEMENT[name];
  const distance = series.value.map((value) => (value === null ? -1 : Math.abs(value - ideal)));
  const at = distance.reduce((best, size, i) => (size > distance[best] ? i : best), 0);
  const cells = [String(ideal), apart(series.value[at], ideal), String(series.step[at]), apart(series.value.at(-1), ideal)];
  return [name, ...(state.runs.length > 1 ? [run.name] : []), ...cells];
}

/** A number near 1 by what it differs from it, since its own digits would hide that. */
function apart(value, ideal) {
  if (value === null || ideal === 0 || Math.abs(value - ideal) > 0.01) return shown(value);
  const difference = value - ideal;
  return difference === 0 ? shown(ideal) : `${ideal} ${difference > 0 ? "+" : "−"} ${shown(Math.abs(difference))}`;
}
