"use strict";
/* Puts the page of a doctor's result together. */

const LEAD = "Mean of e^|Δ| over the tokens that the inference side drew / that the training side drew, and their average; in brackets the bounds of the first, with |Δ| counting at most 3 nats. 1 is agreement. A click shows the cell's plots below.";

function fill(name, children) {
  byId(name).replaceChildren(...children);
  byId(name).dataset.made = "true";
}

/** The cell that a reader should see first: a failed one, and among equals the one farthest apart. */
function farthest(measured) {
  const order = ["PASS", "INCONCLUSIVE", "FAIL"];
  const badness = ({ verdict, metric }) => 1e6 * order.indexOf(verdict) + Math.min(asNumber(metric) || 0, 1e5);
  return measured.reduce((worst, one, number) => (badness(one) > badness(measured[worst]) ? number : worst), 0);
}

async function start() {
  const report = JSON.parse(new TextDecoder().decode(await inflated("report")));
  document.title = `${report.model} – Lockstep doctor`;
  byId("made").textContent = report.made;
  byId("verdict").replaceChildren(verdictLine(report));
  fill("findings", findingsView(report));
  const cell = new CellView(report, byId("cell"));
  const grid = new Grid(report, (number) => cell.show(number));
  fill("table", [element("h2", {}, "Table"), element("p.lead", {}, LEAD), grid.place]);
  fill("layers", layersView(report));
  fill("about", aboutView(report));
  darkMode.addEventListener("change", () => location.reload());
  if (!report.measured.length) return fill("cell", [element("p.empty", {}, "Nothing was measured.")]);
  grid.choose(farthest(report.measured));
  grid.reveal();
}

start();
