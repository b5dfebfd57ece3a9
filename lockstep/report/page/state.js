"use strict";
/* What the reader has chosen, and who is told when it changes. */

const state = {
  runs: [], // as `overview.py` gives them
  sentences: {}, // on metrics
  sweep: null, // as `sweeps.py` gives it; null: the runs are of none
  shown: new Set(), // numbers of the runs that are not switched off
  seen: new Set(), // of those that ever were not
  isReady: false, // the first view has been made
  smoothing: 0,
  logarithmic: false,
  steps: null, // [first, last] that the curves are zoomed to
};
const listeners = [];

const onChange = (listener) => listeners.push(listener);
const seenRuns = () => state.runs.filter((_, number) => state.seen.has(number));
const changed = () => listeners.forEach((listener) => listener());
const shownRuns = () => state.runs.map((run, number) => ({ ...run, number })).filter((run) => state.shown.has(run.number));
