"use strict";
/* The guide's table: a row for what was asked, a column for each pair, a button for each cell. */

/** Calls `onChoose(number)` when a cell is chosen. */
class Grid {
  constructor(report, onChoose) {
    this.onChoose = onChoose;
    const head = ["Length", "Data", "Method", "Batch", ...report.pairs].map((name) => element("th", { scope: "col" }, name));
    this.place = element(
      "div.grid",
      { tabindex: 0, role: "region", "aria-label": "table of agreement" },
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...report.rows.map((row) => this.line(report, row)))),
    );
    this.place.addEventListener("click", (event) => this.clicked(event));
  }

  line(report, row) {
    const asked = [String(row.length), row.data, row.method, String(row.batch_size)].map((text) => element("td", {}, visible(text)));
    const cells = row.state === "measured"
      ? report.pairs.map((pair) => element("td", {}, this.button(row.measured[pair], report.measured)))
      : [element("td.none", { colspan: report.pairs.length }, row.state)];
    return element("tr", {}, ...asked, ...cells);
  }

  button(number, measured) {
    const { clauses, low, high, verdict } = measured[number];
    const sides = ["infer", "train"].flatMap((side) => clauses.filter((one) => one.name === "mult_prob_error" && one.side === side).map((one) => asNumber(one.value)));
    return element(
      "button",
      { type: "button", "data-number": number, "aria-pressed": "false" },
      element("span", {}, sides.map(nearOne).join(" / ")),
      ...(sides.length === 2 ? [element("small", {}, `average ${nearOne((sides[0] + sides[1]) / 2)}`)] : []),
      element("small", {}, `[${nearOne(low)}, ${nearOne(high)}]`),
      badge(verdict),
    );
  }

  clicked(event) {
    const button = event.target.closest("button");
    if (button) this.choose(Number(button.dataset.number));
  }

  choose(number) {
    for (const button of this.place.querySelectorAll("button")) button.setAttribute("aria-pressed", Number(button.dataset.number) === number);
    this.onChoose(number);
  }

  /** Scrolls the table, and not the page, so that the chosen cell is in sight. */
  reveal() {
    const chosen = this.place.querySelector("[aria-pressed=true]");
    this.place.scrollTop += chosen.getBoundingClientRect().bottom - this.place.getBoundingClientRect().bottom + chosen.offsetHeight;
  }
}

/** A number whose neighbours are near 1, by four digits behind the point, or by what it is above 1 where they would hide that. */
function nearOne(value) {
  const number = asNumber(value);
  if (number > 1 && number < 1.001) return `1 + ${(number - 1).toExponential(1)}`;
  return Number.isFinite(number) && Math.abs(number) < 1000 ? number.toFixed(4) : shown(number);
}

/** A number as our JSON has it: the infinities are words there. */
const asNumber = (value) => (value === null || value === undefined ? NaN : Number(value));
