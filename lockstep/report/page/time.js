"use strict";
/* Where the time of a step went: seconds per phase, stacked, each phase's share, and who waited for whom. */

function timeView() {
  const timed = state.runs.map((run, number) => ({ ...run, number })).filter((run) => Object.keys(run.timings).length);
  if (!timed.length) return [element("p.empty", {}, "No step has been timed yet.")];
  return timed.map((run) =>
    section(
      state.runs.length > 1 ? run.name : "Seconds per step",
      element("figure.card", { "data-plot": "phases" }, new Chart(() => phaseTraces(run), () => ({ height: 320, legend: true, xaxis: { steps: true }, yaxis: { type: "linear", title: "seconds", include: [0] } })).place),
      element("h3", {}, "Who works and who waits"),
      timeline(run),
      shareTable(run),
    ),
  );
}

/** One bar per phase on top of the others; a phase that a step did not have took no time in it. */
function phaseTraces(run) {
  const steps = timedSteps(run);
  const colours = phaseColours(run);
  return phases(run).map(([name, phase]) => {
    const seconds = new Map(phase.step.map((step, at) => [step, phase.value[at] ?? 0]));
    return { x: steps, y: steps.map((step) => seconds.get(step) ?? 0), name, stacked: true, line: { width: 0, color: colours.get(name) } };
  });
}

/** Each phase's color, by the order in which they were logged first, so that it stays during a run. */
const phaseColours = (run) => new Map([...new Set(Object.keys(run.timings).map((name) => name.replace(BESIDE, "")))].map((name, i) => [name, phaseColour(i)]));

const timedSteps = (run) => [...new Set(Object.values(run.timings).flatMap((phase) => phase.step))].sort((a, b) => a - b);
const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
const sorted = (run) => Object.entries(run.timings).sort((a, b) => total(b[1].value) - total(a[1].value));
const BESIDE = "beside/"; // went on while phases did: no part of the time of a step
const isBeside = ([name]) => name.startsWith(BESIDE);
const phases = (run) => sorted(run).filter((timing) => !isBeside(timing));

/* Which processes work in a phase; in one that is not listed, all but the driver wait. */
const WORKERS = {
  sampler: ["generate", "validate", "weight_sync", "watch", "start samplers", "judge", "meta_judge", "prompts", "wait for rollouts"],
  "policy learner": ["policy", "logprobs", "weight_sync", "reference", "reward_model", "save", "start learners"],
  "critic learner": ["critic", "values", "save"],
  teacher: ["teacher"],
};
/* The work of a phase; of a loop of the user's own, its name has to say that. */
const PHASES = {
  "start samplers": "inference engines start", "start learners": "models are loaded for training",
  "self-check": "the model is proven to be computed as transformers does", weight_sync: "the sampler takes over the policy's weights",
  data: "rows are read", prompts: "new prompts are written", generate: "the sampler answers prompts, and the answers are scored",
  judge: "answers are judged", meta_judge: "judgments are judged", teacher: "the teacher scores the tokens",
  reference: "the reference policy scores the tokens", values: "the critic estimates the tokens' values",
  logprobs: "the learner scores the tokens as they were sampled, before it learns", watch: "sampler and learner are compared",
  critic: "the critic learns", policy: "the policy learns", reward_model: "the reward model learns",
  "wait for rollouts": "the learner waits for what is sampled ahead", metrics: "the step's figures arrive from the learners",
  log: "logs and trackers are written", validate: "held-out rows are answered or scored", save: "a checkpoint is begun",
};
const DRIVER = "driver, data and all else";
const NEWEST = 5; // steps of the timeline

/** Who works in a phase. */
function workersOf(name) {
  const found = Object.keys(WORKERS).filter((worker) => WORKERS[worker].includes(name.replace(BESIDE, "")));
  return found.length ? found : [DRIVER];
}

/** The stretches of the newest steps in order: {name, step, from, to, beside}, in seconds from the first on. */
function stretches(run) {
  const steps = timedSteps(run).slice(-NEWEST);
  const found = [];
  let now = 0;
  for (const step of steps) {
    const timed = Object.entries(run.timings).map(([name, { step: at, value }]) => [name, value[at.indexOf(step)] ?? 0]).filter(([, seconds]) => seconds > 0);
    const begin = now;
    for (const [name, seconds] of inOrder(timed.filter((timing) => !isBeside(timing)))) {
      found.push({ name, step, from: now, to: now + seconds, beside: false });
      now += seconds;
    }
    for (const [name, seconds] of timed.filter(isBeside)) found.push({ name: name.replace(BESIDE, ""), step, from: Math.max(begin, now - seconds), to: now, beside: true });
  }
  return found;
}

const ORDER = ["start samplers", "start learners", "self-check", "weight_sync", "data", "prompts", "generate", "judge", "meta_judge", "teacher", "reference", "values", "logprobs", "watch", "critic", "policy", "reward_model", "wait for rollouts", "metrics", "log", "validate", "save"];

/** Phases in the order of a step; those that it does not know stand before the learning. */
function inOrder(timed) {
  const place = ([name]) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.indexOf("critic") - 0.5);
  return [...timed].sort((a, b) => place(a) - place(b));
}

/** A line per process: colored where it works, gray where it waits for another. */
function timeline(run) {
  const all = stretches(run);
  const end = Math.max(...all.map((one) => one.to), 1e-9);
  const colours = phaseColours(run);
  const lanes = [...Object.keys(WORKERS), DRIVER].map((worker) => [worker, all.filter(({ name }) => workersOf(name).includes(worker))]).filter(([, own]) => own.length);
  const rows = lanes.flatMap(([worker, own]) => {
    const busy = own.reduce((sum, { from, to }) => sum + to - from, 0) / end;
    const bars = own.map(({ name, step, from, to, beside }) => {
      const bar = element("span.stretch", { title: `step ${step}: ${visible(name)}${beside ? ", beside the learner" : ""}, ${shown(to - from)} s` });
      Object.assign(bar.style, { left: `${(100 * from) / end}%`, width: `${(100 * (to - from)) / end}%`, background: colours.get(name) });
      return bar;
    });
    return [element("span.worker", {}, worker), element("div.lane", { "data-worker": worker }, ...bars), element("span.busy", {}, `works ${(100 * Math.min(busy, 1)).toFixed(0)} %`)];
  });
  const steps = [...new Set(all.map(({ step }) => step))];
  return element(
    "div",
    {},
    element("div.timeline", {}, ...rows),
    element("p.lead", {}, `Steps ${steps[0]} to ${steps.at(-1)}, ${shown(end)} s. A line is colored where its process works, in the colors of the chart above, and gray where it waits for another. Lengths are as logged; the order within a step is the usual one, and work beside the learner is drawn up to the end of its step, since the log holds no times of day.`),
  );
}

function shareTable(run) {
  const all = total(phases(run).flatMap(([, phase]) => phase.value));
  const colours = phaseColours(run);
  const rows = phases(run).map(([name, phase]) => {
    const seconds = total(phase.value);
    const share = (100 * seconds) / all;
    return [visible(name), shown(seconds), shown(seconds / phase.value.length), `${share.toFixed(1)} %`, shareBar(share / 100, colours.get(name)), element("span.prose", {}, PHASES[name] ?? "")];
  });
  const beside = sorted(run).filter(isBeside).map(([name, { value }]) => [visible(name), shown(total(value)), shown(total(value) / value.length), "", "", `${PHASES[name.replace(BESIDE, "")] ?? ""}, while the phases above went on`.replace(/^, /, "")]);
  return plainTable(["phase", "seconds", "per step that had it", "share", "", "work done"], [...rows, ["all", shown(all), "", "", "", ""], ...beside]);
}
