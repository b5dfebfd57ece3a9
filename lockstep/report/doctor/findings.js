"use strict";
/* What the doctor concludes: the verdict, causes with their cures, and the log of its probes. */

/** A verdict as a word in its colour. */
const badge = (word) => element(`span.badge.${word.toLowerCase()}`, {}, word);

const SIDES = { train: "the training side is wrong", infer: "the inference side is wrong" };
const COUNTED = { FAIL: "fail", INCONCLUSIVE: "are inconclusive", PASS: "pass" };

function verdictLine({ verdict, model, counts, measured }) {
  const parts = Object.keys(COUNTED).filter((word) => counts[word]).map((word) => `${counts[word]} ${COUNTED[word]}`);
  const said = measured.length ? `Of ${measured.length} comparisons ${parts.join(", ")}.` : "Nothing was measured.";
  return element("div.verdict", {}, badge(verdict), element("strong", {}, visible(model)), element("span", {}, said));
}

function findingsView({ diagnosis, notes, strangers }) {
  const other = strangers.map(({ cell, drawer, backend }) => `${cell}: ${backend} scored other tokens than those that ${drawer} drew.`);
  const remarks = [...notes, ...other].map((note) => element("p.remark", {}, visible(note)));
  return [element("h2", {}, "Findings"), ...remarks, ...(diagnosis ? causes(diagnosis) : [element("p.empty", {}, "Causes have not been looked for: lockstep doctor diagnose does.")])];
}

function causes({ pair, gap, left, floor, causes }) {
  const from = `${pair[0]} and ${pair[1]} were ${shown(gap)} nats apart (root mean square)`;
  const to = causes.length ? `; ${shown(left)} are left without these causes, and rounding makes ${shown(floor)}.` : `, where rounding makes ${shown(floor)}. No cause was found.`;
  return [element("p.lead", {}, visible(from + to)), element("ol.causes", {}, ...causes.map(causeCard))];
}

function causeCard(cause) {
  const how = [SIDES[cause.side], cause.confidence, `${percent(cause.share)} of the gap`].filter(Boolean).join(" · ");
  const tried = cause.counter ? [`tried: ${cause.counter}`] : [];
  return element(
    "li",
    {},
    element("h3", {}, element("code", {}, visible(cause.cause)), element("small", {}, visible(how))),
    element("p", {}, visible(cause.what)),
    element("p", {}, element("strong", {}, "Cure: "), visible(cause.cure)),
    element("ul", {}, ...[...cause.evidence, ...tried].map((text) => element("li", {}, visible(text)))),
  );
}

const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(0)} %` : "an unknown share");

function probesView({ diagnosis }) {
  const title = element("h2", {}, "Probes");
  if (!diagnosis) return [title, element("p.empty", {}, "No probe has been run yet.")];
  const rows = diagnosis.log.map(({ name, status, said, seconds, gap }) => [visible(name), badge(status), element("span.prose", {}, visible(said)), shown(gap), shown(seconds)]);
  return [title, plainTable(["probe", "", "what it saw", "gap behind it, nats", "seconds"], rows)];
}
