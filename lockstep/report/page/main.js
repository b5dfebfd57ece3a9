"use strict";
/* Puts the page together: the runs at its head, and views that are made when they are first opened. */

const VIEWS = { curves: curvesView, agreement: agreementView, time: timeView, samples: samplesView, heldout: heldOutView, recipe: recipeView };

async function samplesView() {
  const indexes = await Promise.all(state.runs.map((_, run) => inflated(`samples-${run}`)));
  const view = new SamplesView(indexes.map(unpack));
  onChange(() => view.refresh());
  queueMicrotask(() => view.refresh());
  return [view.place];
}

/** One line per run, which also switches it off and on. */
function runLine(run, number) {
  const toggle = (event) => {
    if (event.target.checked) state.shown.add(number);
    else state.shown.delete(number);
    changed();
  };
  const box = element("input", { type: "checkbox", checked: "", "data-run": number, onchange: toggle });
  box.style.accentColor = runColour(number);
  const facts = [
    ...(run.environment.recipe ? [run.environment.recipe] : []),
    run.planned === null ? `step ${run.step}` : `step ${run.step} of ${run.planned}`,
    run.finished ? "finished" : "not finished",
    ...run.headlines,
  ];
  const swatch = element("span.swatch");
  swatch.style.background = runColour(number);
  return element("label.run", {}, box, swatch, element("strong", {}, run.name), element("span", {}, facts.join(" · ")));
}

async function openView(name) {
  for (const tab of document.querySelectorAll("nav a")) tab.toggleAttribute("aria-current", tab.hash === `#${name}`);
  for (const view of document.querySelectorAll("main > div")) view.hidden = view.id !== name;
  const place = byId(name);
  if (place.dataset.made) return;
  place.dataset.made = "true";
  place.replaceChildren(...(await VIEWS[name]()));
}

const wanted = () => (location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "curves");

async function start() {
  const report = JSON.parse(new TextDecoder().decode(await inflated("report")));
  state.runs = report.runs;
  state.runs.forEach((_, number) => state.shown.add(number));
  document.title = `${state.runs.map((run) => run.name).join(", ")} – Lockstep`;
  byId("made").textContent = `as of ${report.made}`;
  byId("runs").replaceChildren(...state.runs.map(runLine));
  onChange(oncePerFrame(Chart.refreshAll));
  darkMode.addEventListener("change", () => location.reload());
  window.addEventListener("hashchange", () => openView(wanted()));
  await openView(wanted());
}

start();
