"use strict";
/* Curves over steps: cards of charts that are drawn when they come into sight, all zoomed together. */

const HEADLINES = [
  "validation/accuracy", "validation/reward", "validation/loss", "validation/acc", "train/reward", "train/shaped_reward", "train/kl",
  "train/response_length", "train/loss", "train/acc", "policy/kl", "policy/loss", "policy/entropy", "policy/grad_norm", "critic/loss", "critic/explained_variance", "agreement/token_mult_prob_error",
];
const GROUPS = ["train", "validation", "val", "reward", "policy", "critic", "agreement", "weight_sync"];

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

const FEW = 40; // values that are each marked by a dot

/** Metrics that are measured now and then: each value is marked. */
const isMarked = (metric, values) => /^val(idation)?\//.test(metric) || values.length <= FEW;

/**
 * A metric of all runs that are switched on, as traces, with the ends of its interval as dotted lines, its best step,
 * its bound and its alarms; smoothed ones lie over a faint copy of what was logged.
 */
function metricTraces(metric) {
  return [...bandTraces(metric), ...runTraces(metric)];
}

/** The traces of single runs; those of a sweep are faint where a band shows them together. */
function runTraces(metric) {
  const isBanded = shownGroups().some((group) => group.bands[metric]);
  return shownRuns()
    .filter((run) => run.metrics[metric])
    .flatMap((run) => {
      const { step, value } = run.metrics[metric];
      const color = colourOfRun(run.number);
      const line = { color, width: isBanded ? 1 : 1.6 };
      if (isBanded) return [{ x: step, y: smoothed(value, state.smoothing), name: run.name, mode: "lines", line, opacity: 0.4 }];
      const mode = isMarked(metric, value) ? "lines+markers" : "lines";
      const logged = { x: step, y: value, name: run.name, mode, line, marker: { size: 5, color } };
      const ends = ["low", "high"].map((end) => run.metrics[`${metric}_${end}`]).filter(Boolean);
      const interval = ends.map((own) => ({ ...logged, x: own.step, y: own.value, mode: "lines", opacity: 0.6, silent: true, line: { color, width: 1, dash: "dot" } }));
      const marks = [...bestMark(run, metric), ...alarmMarks(run, metric)];
      if (state.smoothing === 0) return [logged, ...interval, ...boundLine(run, metric), ...marks];
      return [{ ...logged, opacity: 0.25, silent: true }, { ...logged, mode: "lines", y: smoothed(value, state.smoothing) }, ...boundLine(run, metric), ...marks];
    });
}

const themeColour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

/** A ring around the best value of a figure on held-out rows. */
function bestMark(run, metric) {
  const best = run.best?.[metric];
  if (best === undefined) return [];
  const { step, value } = run.metrics[metric];
  return [{ x: [best], y: [value[step.indexOf(best)]], name: `${run.name}, best`, mode: "markers", silent: true, marker: { size: 8, ring: true, color: colourOfRun(run.number) } }];
}

/** A red dot at each step of an alarm. */
function alarmMarks(run, metric) {
  const { step, value } = run.metrics[metric];
  const alarmed = new Set(run.alarms.filter((alarm) => alarm.metric === metric).flatMap((alarm) => alarm.steps));
  const places = step.map((_, i) => i).filter((i) => alarmed.has(step[i]) && value[i] !== null);
  if (!places.length) return [];
  return [{ x: places.map((i) => step[i]), y: places.map((i) => value[i]), name: `${run.name}, alarm`, mode: "markers", silent: true, marker: { size: 8, color: themeColour("--fail") } }];
}

/** The dashed line that agreement may not pass. */
function boundLine(run, metric) {
  if (metric !== AGREEMENT_METRIC || !run.bound) return [];
  const { step } = run.metrics[metric];
  return [{ x: [step[0], step.at(-1)], y: [run.bound, run.bound], name: `${run.name}, bound`, mode: "lines", silent: true, line: { color: themeColour("--fail"), width: 1.2, dash: "dash" } }];
}

const AGREEMENT_METRIC = "agreement/token_mult_prob_error";

/** Agreement is drawn between perfect and its bound, so that a value near the bound is seen to be near it. */
function metricLayout(metric) {
  const isAgreement = metric === AGREEMENT_METRIC;
  const bounds = isAgreement ? shownRuns().map((run) => run.bound).filter(Boolean) : [];
  return { yaxis: { include: isAgreement ? [1, ...bounds] : [], type: state.logarithmic && !isAgreement ? "log" : "linear" } };
}

/** Zooms all charts to the steps that one was zoomed to; a double click shows all steps again. */
Chart.zoomed = (_, range) => {
  state.steps = range;
  Chart.refreshAll();
};

Chart.common = () => ({
  xaxis: { range: state.steps ?? undefined, steps: true },
  yaxis: { type: state.logarithmic ? "log" : "linear" },
});

/** A chart of a metric with its name, and what of it cannot be drawn. */
function metricCard(metric, note = "") {
  const gaps = shownGaps(metric);
  const small = [note, gaps ? `${gaps} values are not finite and left out` : ""].filter(Boolean).join(" · ");
  return element(
    "figure.card",
    { "data-metric": metric },
    element("figcaption", {}, element("span.name", {}, visible(metric)), small ? element("small", {}, small) : ""),
    ...verdicts(metric),
    element("p.sentence", {}, kept(state.sentences[metric] ?? "")),
    new Chart(() => metricTraces(metric), () => metricLayout(metric)).place,
  );
}

/** Each run's verdict in its color, above the chart of agreement. */
function verdicts(metric) {
  if (metric !== AGREEMENT_METRIC) return [];
  const judged = seenRuns().filter((run) => run.agreed);
  return judged.map((run) => element("p.sentence", {}, agreementBadge(run.agreed), ` ${state.runs.length > 1 ? `${run.name}: ` : ""}${run.bound ? `bound ${run.bound}` : ""}`));
}

const agreementBadge = (word) => element(`span.badge.${{ AGREE: "pass", DISAGREE: "fail" }[word] ?? "open"}`, {}, word);

const certificateBadge = (level) => element(`span.badge.${/^E[23]/.test(level) ? "pass" : "open"}`, {}, level);

/** The level of a run's certificate, and what it rests on. */
function certificateOf(run) {
  const { level, sentence } = run.certificate;
  const name = state.runs.length > 1 ? `${run.name}: ` : "";
  const told = visible(sentence.slice(sentence.indexOf(", ") + 2));
  return element("p.lead.certificate", {}, certificateBadge(level), ` ${name}${told}`);
}

const shownGaps = (metric) =>
  seenRuns().reduce((gaps, run) => gaps + (run.metrics[metric]?.value.filter((value) => value === null).length ?? 0), 0);

/** All metrics but the ends of intervals, which are drawn in the chart of theirs. */
function metricNames() {
  const names = new Set(seenRuns().flatMap((run) => Object.keys(run.metrics)));
  return [...names].filter((name) => !names.has(name.replace(/_(low|high)$/, "")) || !/_(low|high)$/.test(name));
}

/** The one value that a metric has in all steps of all runs; undefined where it changes, or has only just begun. */
function constantValue(metric) {
  const values = seenRuns().flatMap((run) => run.metrics[metric]?.value ?? []);
  return values.length > 1 && values[0] !== null && values.every((value) => value === values[0]) ? values[0] : undefined;
}

/** The metrics that never change, on one line that opens. */
function constantLine(names) {
  const rows = names.map((name) => [element("code", { title: state.sentences[name] ?? "" }, visible(name)), shown(constantValue(name)), element("span.prose", {}, state.sentences[name] ?? "")]);
  const told = names.map((name) => `${visible(name)} ${shown(constantValue(name))}`).join(" · ");
  return element("details.constants", {}, element("summary", {}, `${names.length} never change`, element("small", {}, told)), plainTable(["metric", "value", ""], rows));
}

function metricGroups() {
  const names = metricNames();
  const prefix = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "other");
  const prefixes = [...new Set([...GROUPS, ...names.map(prefix)])];
  return [
    ["headlines", HEADLINES.filter((name) => names.includes(name))],
    ...prefixes.map((group) => [group, names.filter((name) => prefix(name) === group && !HEADLINES.includes(name))]),
  ].filter(([, members]) => members.length);
}

function curvesView() {
  const groups = metricGroups();
  if (!groups.length) return [element("p.empty", {}, "No step has been logged yet.")];
  return [
    curveControls(),
    ...(state.sweep ? [element("p.lead", {}, bandSentence())] : []),
    ...groups.map(([group, members], i) => {
      const constant = group !== "headlines" ? members.filter((name) => constantValue(name) !== undefined) : [];
      const cards = members.filter((name) => !constant.includes(name)).map((name) => metricCard(name));
      return element(
        "details.group",
        i < 2 ? { open: "" } : {},
        element("summary", {}, group, element("small", {}, ` ${members.length}`)),
        ...(cards.length ? [element("div.cards", {}, ...cards)] : []),
        ...(constant.length ? [constantLine(constant)] : []),
      );
    }),
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
    element("span.hint", {}, "each over the steps of the run; drag to zoom all, double-click to see all steps"),
  );
}

/** Shows the cards whose metric's name holds a text, in opened groups. */
function showMatching(text) {
  for (const group of document.querySelectorAll("#curves details.group")) {
    const cards = [...group.querySelectorAll("figure")];
    cards.forEach((card) => (card.hidden = !card.dataset.metric.includes(text.trim())));
    const folded = group.querySelector(".constants");
    const isFolded = folded !== null && folded.textContent.includes(text.trim());
    if (folded) folded.hidden = !isFolded;
    group.hidden = cards.every((card) => card.hidden) && !isFolded;
    if (text.trim()) group.open = true;
  }
}

/* The measures of agreement, and what each is where both sides are the same. */
const AGREEMENT = {
  token_mult_prob_error: 1, max_abs_logprob_diff: 0, sampler_kl_k1: 0, sampler_kl_k3: 0, sequence_ess: 1, breach: 0,
  weights_age: 0, weight: 1, sequences_masked: 0,
};

/** The metrics of agreement: how far each run ever was from the ideal, and all curves. */
async function agreementView() {
  const present = Object.keys(AGREEMENT).filter((name) => metricNames().includes(`agreement/${name}`));
  if (!present.length) return [element("p.empty", {}, "This run has no sampler that its learner could disagree with.")];
  const isAlive = (name) => name === "token_mult_prob_error" || constantValue(`agreement/${name}`) === undefined;
  const indexes = await Promise.all(state.runs.map((_, run) => inflated(`samples-${run}`)));
  const worst = present.flatMap((name) => state.runs.map((run) => worstRow(run, name)).filter(Boolean));
  return [
    element("p.lead", {}, "Δ is the learner's log-probability of a sampled token less the sampler's. Both should be the same policy."),
    ...state.runs.filter((run) => run.agreement).map((run) => element("p.lead.verdict", {}, agreementBadge(run.agreed), ` ${state.runs.length > 1 ? `${run.name}: ` : ""}${run.agreement.replace(`${run.agreed}: `, "")}`)),
    ...state.runs.filter((run) => run.certificate).map(certificateOf),
    element(
      "div.sides",
      {},
      plainTable(["measure", ...(state.runs.length > 1 ? ["run"] : []), "ideal", "farthest from it", "at step", "last"], worst),
      ...indexes.flatMap((index, run) => gapHistogram(state.runs[run], unpack(index).header.gaps)),
      ...depthTable(),
    ),
    element("div.cards", {}, ...present.filter(isAlive).map((name) => metricCard(`agreement/${name}`, `ideal ${AGREEMENT[name]}`))),
    ...(present.every(isAlive) ? [] : [constantLine(present.filter((name) => !isAlive(name)).map((name) => `agreement/${name}`))]),
  ];
}

/** How many trained tokens of the logged responses have a |Δ| of each power of ten; `gaps` are pairs of the power, −10 for 0, and the count. */
function gapHistogram(run, gaps) {
  if (!gaps.length) return [];
  const counts = new Map(gaps);
  const most = Math.max(...counts.values());
  const powers = Array.from({ length: gaps.at(-1)[0] - gaps[0][0] + 1 }, (_, i) => gaps[0][0] + i);
  const name = (power) => (power === -10 ? "0" : power === -9 ? "below 1e−8" : `1e${power} to 1e${power + 1}`.replaceAll("-", "−"));
  const rows = powers.map((power) => [name(power), (counts.get(power) ?? 0).toLocaleString("en"), shareBar((counts.get(power) ?? 0) / most)]);
  return [plainTable([`${state.runs.length > 1 ? `${run.name}: ` : ""}|Δ|, nats`, "trained tokens logged", ""], rows)];
}

/** The gap by position in the sequence: its mean over the steps, and the largest of a step. */
function depthTable() {
  const prefix = "agreement/gap_from_";
  const depths = metricNames().filter((name) => name.startsWith(prefix)).map((name) => Number(name.slice(prefix.length))).sort((a, b) => a - b);
  const rows = depths.map((low, i) => [i + 1 < depths.length ? `${low} to ${depths[i + 1] - 1}` : `from ${low}`, ...state.runs.flatMap((run) => gapsOf(run.metrics[`${prefix}${low}`]))]);
  const columns = state.runs.flatMap((run) => ["mean |Δ|", "largest step"].map((what) => (state.runs.length > 1 ? `${run.name}: ${what}` : what)));
  return rows.length ? [plainTable(["position in the sequence", ...columns], rows)] : [];
}

function gapsOf(series) {
  const values = (series?.value ?? []).filter((value) => value !== null);
  if (!values.length) return ["–", "–"];
  return [shown(values.reduce((sum, value) => sum + value, 0) / values.length), shown(Math.max(...values))];
}

/** All alarms, each with its run where there are several. */
function alarmList(runs) {
  const told = runs.flatMap((run) => run.alarms.map(({ sentence }) => `${runs.length > 1 ? `${run.name}, ` : ""}${sentence}`));
  if (!told.length) return [];
  return [element("ul.alarms", {}, ...told.map((text) => element("li", {}, visible(text))))];
}

function worstRow(run, name) {
  const series = run.metrics[`agreement/${name}`];
  if (!series) return null;
  const ideal = AGREEMENT[name];
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
