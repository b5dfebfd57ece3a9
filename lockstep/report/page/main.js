"use strict";
/* Puts the page together: the runs at its head, and views that are made when they are first opened. */

const VIEWS = { sweep: sweepView, curves: curvesView, agreement: agreementView, time: timeView, samples: samplesView, heldout: heldOutView, recipe: recipeView };

async function samplesView() {
  const indexes = await Promise.all(state.runs.map((_, run) => inflated(`samples-${run}`)));
  const view = new SamplesView(indexes.map(unpack));
  onChange(() => view.refresh());
  queueMicrotask(() => {
    view.refresh();
    view.openFirst();
  });
  return [view.place];
}

const STATE_BADGES = { running: "clean", finished: "pass", died: "fail", stopped: "open", "not finished": "open" };

/** One line per run, which also switches it off and on. */
function runLine(run, number) {
  const toggle = (event) => {
    if (event.target.checked) show(number);
    else state.shown.delete(number);
    changed();
  };
  const checked = state.shown.has(number) ? { checked: "" } : {};
  const box = element("input", { type: "checkbox", ...checked, "data-run": number, onchange: toggle });
  box.style.accentColor = colourOfRun(number);
  const facts = [
    ...(run.environment.recipe ? [run.environment.recipe] : []),
    run.planned === null ? `step ${run.step}` : `step ${run.step} of ${run.planned}`,
    element(`span.state.${STATE_BADGES[run.state]}`, {}, run.state),
    ...(run.about_state ? [visible(run.about_state)] : []),
    ...(run.left_s === null || run.left_s === undefined ? [] : [`about ${clock(run.left_s)} left`]),
    ...run.headlines.map(kept),
  ];
  const swatch = element("span.swatch");
  swatch.style.background = colourOfRun(number);
  const told = facts.flatMap((fact, i) => (i ? [" · ", fact] : [fact]));
  return element("label.run", {}, box, swatch, element("strong", {}, run.name), element("span", {}, ...told));
}

/** Hours, minutes and seconds, as on a clock. */
function clock(seconds) {
  const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds) % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Shows a run; if it is the first time, the cards of its metrics are made. */
function show(number) {
  state.shown.add(number);
  if (state.seen.has(number)) return;
  state.seen.add(number);
  delete byId("curves").dataset.made;
  if (wanted() === "curves" && state.isReady) openView("curves");
}

async function openView(name) {
  for (const tab of document.querySelectorAll("nav a")) tab.toggleAttribute("aria-current", tab.hash === `#${name}`);
  for (const view of document.querySelectorAll("main > div")) view.hidden = view.id !== name;
  const place = byId(name);
  if (place.dataset.made) return;
  if (!state.runs.length) return place.replaceChildren(element("p.empty", {}, "There is no run yet."));
  place.dataset.made = "true";
  place.replaceChildren(...(await VIEWS[name]()));
}

const wanted = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "curves");

/** Opens a tab's view and lets the tabs stay where they are in sight: the browser itself would scroll them away. */
function tabClicked(event) {
  const tab = event.target.closest("a");
  if (!tab) return;
  event.preventDefault();
  history.pushState(null, "", tab.hash);
  openView(wanted());
  window.scrollTo(0, Math.min(window.scrollY, document.querySelector("header").offsetHeight));
}

function showHead(report) {
  state.runs = report.runs;
  state.sentences = report.sentences;
  state.sweep = report.sweep ?? null;
  document.querySelector("nav a[href='#sweep']").hidden = !state.sweep;
  document.title = `${state.runs.map((run) => run.name).join(", ")} – Lockstep`;
  byId("made").textContent = `as of ${report.made}`;
  byId("runs").replaceChildren(...state.runs.map(runLine));
  byId("alarms").replaceChildren(...alarmList(shownRuns()));
}

/** What the cards of the curves depend on: only where it changes are they made anew. */
const cardsSignature = () => metricNames().map((name) => `${name} ${constantValue(name) !== undefined} ${shownGaps(name)}`).join("\n") + state.runs.map((run) => run.agreed);

/** Shows what has been logged since: the view in sight now, the others when they are opened. */
async function renew(report) {
  const before = cardsSignature();
  const known = state.runs.length;
  report.runs.forEach((run, number) => number >= known && !run.aside && show(number));
  showHead(report);
  const isSame = cardsSignature() === before && known === state.runs.length;
  for (const name of Object.keys(VIEWS)) if (!(name === "curves" && isSame)) delete byId(name).dataset.made;
  if (wanted() === "samples" && document.querySelector("#samples .samples")) {
    byId("samples").dataset.made = "true";
    offerSamples();
  }
  const top = window.scrollY;
  await openView(wanted());
  window.scrollTo(0, top);
  Chart.refreshAll();
}

/** The reader of a sample is not disturbed: a button shows those that are new. */
function offerSamples() {
  if (byId("renew")) return;
  const show = () => {
    delete byId("samples").dataset.made;
    openView("samples");
  };
  byId("samples").prepend(element("button", { id: "renew", type: "button", onclick: show }, "show the samples logged since"));
}

async function start() {
  history.scrollRestoration = "manual";
  const report = JSON.parse(new TextDecoder().decode(await inflated("report")));
  report.runs.forEach((run, number) => !run.aside && show(number));
  showHead(report);
  onChange(() => byId("alarms").replaceChildren(...alarmList(shownRuns())));
  onChange(oncePerFrame(Chart.refreshAll));
  darkMode.addEventListener("change", () => location.reload());
  window.addEventListener("hashchange", () => openView(wanted()));
  document.querySelector("nav").addEventListener("click", tabClicked);
  await openView(wanted());
  state.isReady = true;
  window.scrollTo(0, 0);
  if (typeof followRuns === "function") followRuns(renew, () => (byId("made").textContent = `${byId("made").textContent.replace(/; .*/, "")}; lockstep watch does not answer`));
}

start();
