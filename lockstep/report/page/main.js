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
    ...(run.agreed ? [agreementBadge(run.agreed)] : []),
    ...(run.certificate ? [certificateBadge(run.certificate.level)] : []),
    ...(run.about_state ? [visible(run.about_state)] : []),
    ...run.headlines.map(kept),
  ];
  const swatch = element("span.swatch");
  swatch.style.background = colourOfRun(number);
  const told = facts.flatMap((fact, i) => (i ? [" · ", fact] : [fact]));
  return element("label.run", {}, box, swatch, element("strong", {}, run.name), element("span", {}, ...told));
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

async function start() {
  history.scrollRestoration = "manual";
  const report = JSON.parse(new TextDecoder().decode(await inflated("report")));
  report.runs.forEach((run, number) => show(number));
  showHead(report);
  onChange(() => byId("alarms").replaceChildren(...alarmList(shownRuns())));
  onChange(oncePerFrame(Chart.refreshAll));
  window.addEventListener("beforeprint", Chart.drawAll);
  darkMode.addEventListener("change", () => location.reload());
  window.addEventListener("hashchange", () => openView(wanted()));
  document.querySelector("nav").addEventListener("click", tabClicked);
  await openView(wanted());
  state.isReady = true;
  window.scrollTo(0, 0);
}

start();
