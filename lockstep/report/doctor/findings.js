"use strict";
/* What the doctor concludes: the verdict, causes with their cures, and the log of its probes. */

/** A verdict as a word in its colour. */
const badge = (word) => element(`span.badge.${word.toLowerCase()}`, {}, word);

const SIDES = { train: "the training side is wrong", infer: "the inference side is wrong" };

function verdictLine(report) {
  return element("div.verdict", {}, badge(report.verdict), element("strong", {}, visible(report.model)), element("span", {}, visible(report.sentence)));
}

function findingsView(report) {
  const title = element("h2", {}, "Findings");
  if (report.causes === null) return [title, element("p.empty", {}, "No cause has been looked for yet: lockstep doctor diagnose does.")];
  if (!report.causes.length) return [title, element("p.empty", {}, report.verdict === "FAIL" ? "No cause was found: unexplained." : "No cause was found.")];
  return [title, element("ol.causes", {}, ...report.causes.map(causeCard))];
}

function causeCard(cause) {
  const how = [SIDES[cause.side], cause.confidence, `${percent(cause.share)} of the gap`].filter(Boolean).join(" · ");
  return element(
    "li",
    {},
    element("h3", {}, element("code", {}, visible(cause.cause)), element("small", {}, how)),
    element("p", {}, visible(cause.what)),
    element("p", {}, element("strong", {}, "Cure: "), visible(cause.cure)),
    element("ul", {}, ...cause.evidence.map((line) => element("li", {}, visible(line))), element("li", {}, `Tried: ${visible(cause.counter)}`)),
  );
}

const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(0)} %` : "an unknown share");

function probesView(report) {
  const title = element("h2", {}, "Probes");
  if (!report.probes.length) return [title, element("p.empty", {}, "No probe has been run yet: lockstep doctor diagnose does.")];
  const rows = report.probes.map((probe) => [
    visible(probe.name),
    badge(probe.status),
    element("span.value.prose", {}, visible(probe.sentence)),
    shown(probe.share),
    shown(probe.seconds),
  ]);
  return [title, plainTable(["probe", "", "what it saw", "share of the gap", "seconds"], rows)];
}

function aboutView(report) {
  const table = (tree) => optionTable(["value"], Object.entries(tree).map(([key, value]) => [visible(key), [JSON.stringify(value)]]));
  return [element("h2", {}, "Environment"), table(report.environment), element("h2", {}, "Options"), table(report.options)];
}
