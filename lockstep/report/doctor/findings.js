"use strict";
/* What the doctor concludes: the verdict, and the places of a disagreement with what is known about each. */

/** A verdict as a word in its colour. */
const badge = (word) => element(`span.badge.${word.toLowerCase()}`, {}, word);

const COUNTED = { FAIL: "fail", INCONCLUSIVE: "are inconclusive", PASS: "pass" };

function verdictLine({ verdict, model, counts, measured }) {
  const parts = Object.keys(COUNTED).filter((word) => counts[word]).map((word) => `${counts[word]} ${COUNTED[word]}`);
  const said = measured.length ? `Of ${measured.length} comparisons ${parts.join(", ")}.` : "Nothing was measured.";
  return element("div.verdict", {}, badge(verdict), element("strong", {}, visible(model)), element("span", {}, said));
}

function findingsView({ location: found, notes }) {
  const remarks = notes.map((note) => element("p.remark", {}, visible(note)));
  return [element("h2", {}, "Findings"), ...remarks, ...(found ? placesView(found) : [element("p.empty", {}, "The place of a disagreement has not been looked for: lockstep doctor locate does.")])];
}

function placesView({ pair, gap, floor, removed, places, columns, reproduction, read, left_out: leftOut = [] }) {
  const from = `${pair[0]} and ${pair[1]} were ${shown(gap)} nats apart (root mean square), where rounding makes ${shown(floor)}`;
  const to = places.length ? `; undoing what follows removes ${percent(removed)} of it.` : ". No segment gave other values for the same inputs.";
  const script = reproduction ? [element("p.remark", {}, "Fails on the fault: ", element("code", {}, visible(reproduction)))] : [];
  const rest = [read && `Read: ${read}.`, leftOut.length && `Not done for want of time or memory, here or in other comparisons: ${leftOut.join(", ")}.`];
  return [
    element("p.lead", {}, visible(from + to)),
    ...columns.map((text) => element("p.remark", {}, visible(text))),
    element("ol.places", {}, ...places.map(placeCard)),
    ...script,
    ...rest.filter(Boolean).map((text) => element("p.remark", {}, visible(text))),
  ];
}

function placeCard({ segments, removed, wrong, errors, suspects, measured, settings }) {
  const { start, end } = segments[0];
  const side = { 0: "neither side is beyond rounding", 1: `${wrong[0]} is wrong` }[wrong.length] ?? `${wrong.join(" and ")} are both wrong`;
  const layers = segments.length > 1 ? `in ${segments.length} layers` : "";
  const how = [Object.keys(errors).length ? side : "", `${percent(removed)} of the gap`, layers].filter(Boolean).join(" · ");
  const undone = settings.map((one) => `${one.what}${one.removed === null ? "" : `: undoing it removes ${percent(Math.max(one.removed, 0))}`}`);
  const lines = suspects.map((one) => [one.operator, ...one.lines.slice(0, 2).map(({ file, line, function: name }) => `${file}:${line} ${name}`)].join(" ← "));
  const distances = Object.entries(errors).map(([engine, error]) => `${engine} is ${shown(error)} from float64 there`);
  return element(
    "li",
    {},
    element("h3", {}, element("code", {}, visible(`${start ?? "ids"} → ${end}`)), element("small", {}, visible(how))),
    element("ul", {}, ...[...distances, ...measured, ...undone, ...lines].map((text) => element("li", {}, visible(text)))),
  );
}

const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(0)} %` : "an unknown share");
