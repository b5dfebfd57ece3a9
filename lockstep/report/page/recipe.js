"use strict";
/* The resolved recipes, side by side: what differs first. */

function recipeView() {
  const names = state.runs.map((run) => run.name);
  const [differing, same] = split(state.runs.map((run) => run.recipe));
  const environment = split(state.runs.map((run) => run.environment)).flat();
  const search = element("input", { id: "option", type: "search", placeholder: "find an option…", "aria-label": "show options whose name or value holds", oninput: (event) => showOptions(event.target.value) });
  return [
    element("div.controls", {}, search),
    ...(names.length > 1 ? [section("Where the runs differ", optionTable(names, differing))] : []),
    section(names.length > 1 ? "What they share" : "Recipe", optionTable(names.slice(0, 1), same, names.length > 1)),
    section("Environment", optionTable(names, environment)),
  ];
}

/** Shows the options whose line holds a text. */
function showOptions(text) {
  for (const row of document.querySelectorAll("#recipe tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(text.trim().toLowerCase());
}

/** Keys with each run's value, those that differ apart from those that do not. */
function split(trees) {
  const keys = [...new Set(trees.flatMap(Object.keys))];
  const rows = keys.map((key) => [key, trees.map((tree) => (key in tree ? JSON.stringify(tree[key]) : "–"))]);
  const differs = ([, values]) => values.some((value) => value !== values[0]);
  return [rows.filter(differs), rows.filter((row) => !differs(row))];
}

function optionTable(names, rows, isCommon = false) {
  if (!rows.length) return element("p.empty", {}, "Nothing.");
  const head = isCommon || names.length === 1 ? ["option", "value"] : ["option", ...names];
  return plainTable(head, rows.map(([key, values]) => [element("code", {}, key), ...values.slice(0, names.length).map((value) => element("code.value", {}, visible(value)))]));
}
