"use strict";
/* The plots of one cell. */

const quiet = () => getComputedStyle(document.body).getPropertyValue("--quiet").trim();

/** What a logarithmic axis can show; 0 and what is not finite are gaps. */
const positive = (values) => values.map((value) => (asNumber(value) > 0 && Number.isFinite(asNumber(value)) ? value : null));

const curve = (name, x, y, line, more = {}) => ({
  mode: "lines", x: x.map(asNumber), y: positive(y), name, line: { width: 1.6, ...line }, ...more,
});

/** A column of zeros and gaps has no trace. */
const drawable = (traces) => traces.filter((trace) => trace.y.some((value) => value !== null));

function binTraces(bins) {
  const dots = { mode: "lines+markers", marker: { size: 3.5 } };
  return drawable([
    curve("99th percentile", bins.at, bins.p99, { color: runColour(1) }, dots),
    curve("median", bins.at, bins.median, { color: runColour(0) }, dots),
    curve("median of the floor", bins.at, bins.floor, { color: quiet(), dash: "dot" }),
  ]);
}

function survivalTraces({ survival, floor_survival }, limits) {
  const limit = { mode: "markers", marker: { size: 7, ring: true, color: runColour(3) } };
  return drawable([
    curve("the two sides", survival.x, survival.share, { color: runColour(1), shape: "vh" }),
    curve("the floor", floor_survival.x, floor_survival.share, { color: quiet(), dash: "dot", shape: "vh" }),
    curve("limit of outliers", [limits.outlier_nats], [limits.max_outlier_rate], {}, limit),
  ]);
}

/** The layout of a chart that has a legend and titles at its axes; `type` is that of the x axis. */
const titled = (x, y, type, more = {}) => ({ legend: true, height: 260, xaxis: { title: x, type }, yaxis: { title: y, type: "log" }, ...more });

const FROM = { index: "token of the response", position: "token of the sequence, prompt included" };
const SIDE_NAMES = { train: "training side", infer: "inference side" };

/** Shows cells in `place`, one at a time. */
class CellView {
  constructor(report, place) {
    Object.assign(this, { report, place, from: "index", plots: element("div") });
    this.charts = {
      position: new Chart(() => binTraces(this.block[this.from]), () => titled(FROM[this.from], "|Δ|, nats", "log")),
      logprob: new Chart(() => binTraces(this.block.logprob), () => titled("log-probability of the inference side, nats", "|Δ|, nats", "linear")),
      survival: new Chart(() => survivalTraces(this.block, report.limits), () => titled("|Δ|, nats", "share of tokens that far apart", "log")),
    };
    this.map = new HeatMap();
  }

  show(number) {
    const { length, data, method, batch_size, train, infer, verdict, reasons, clauses, drawn } = this.report.measured[number];
    this.place.replaceChildren(
      element("h2", {}, visible(`Length ${length} · ${data} · ${method} · batch ${batch_size} · ${train} vs ${infer} `), badge(verdict)),
      ...reasons.map((reason) => element("p.reason", {}, visible(reason))),
      element("details", {}, element("summary", {}, "All clauses"), clauseTable(clauses)),
      element("div.controls", {}, element("label", {}, "Tokens drawn by the ", chooser(drawn.map(({ side, drawer }, at) => [at, visible(`${SIDE_NAMES[side]}, ${drawer}`)]), 0, (at) => this.open(drawn[at])))),
      this.plots,
    );
    this.open(drawn[0]);
  }

  /** Draws what one side has drawn, unless something else has been chosen meanwhile. */
  async open({ block, figures, kind, floor_rms }) {
    this.opened = block;
    const { header, columns } = unpack(await inflated(`drawn-${block}`));
    if (this.opened !== block) return;
    this.block = header;
    this.plots.replaceChildren(...this.filled({ ...figures, floor_rms }, kind));
    this.map.show(header.map, columns.map);
    Object.values(this.charts).forEach((chart) => chart.redraw());
    Object.assign(this.place.dataset, { block, made: true });
  }

  filled(figures, kind) {
    const { tokens, sequences, odd, worst } = this.block;
    const facts = [
      ["tokens", tokens.toLocaleString("en")],
      ["sequences", sequences.toLocaleString("en")],
      ...(odd ? [["without a finite log-probability", `${odd} tokens, in no curve`]] : []),
      ...Object.entries(figures).filter(([name]) => !["tokens", "sequences"].includes(name)).map(([name, value]) => [name, shown(asNumber(value))]),
    ];
    const from = chooser(Object.keys(FROM).map((name) => [name, `in the ${FROM[name].split(" ")[3].replace(",", "")}`]), this.from, (name) => this.count(name));
    return [
      ...(kind === "plain" ? [element("p.lead", {}, "Scored at temperature 1 and among all tokens, since a backend knows nothing else.")] : []),
      element("dl.facts", {}, ...facts.map(([name, text]) => element("div", {}, element("dt", {}, visible(name)), element("dd", {}, text)))),
      element(
        "div.cards",
        {},
        plotCard("position", "|Δ| against position", this.charts.position.place, from),
        plotCard("logprob", "|Δ| against log-probability", this.charts.logprob.place),
        plotCard("survival", "how many tokens are how far apart", this.charts.survival.place),
        plotCard("map", "largest |Δ| by sequence and position", this.map.place, element("small", {}, this.rowsShown())),
      ),
      element("h3", {}, "Tokens farthest apart"),
      worstTable(worst),
    ];
  }

  /** Counts positions from the beginning of the response, or of the sequence. */
  count(from) {
    this.from = from;
    this.charts.position.redraw();
  }

  rowsShown() {
    const { map, sequences } = this.block;
    return map.rows.length < sequences ? `the ${map.rows.length} of ${sequences} sequences that are farthest apart` : `${sequences} sequences, the first at the top`;
  }
}

const plotCard = (name, title, plot, ...more) =>
  element("figure.card", { "data-plot": name }, element("figcaption", {}, element("span.name", {}, title), ...more), plot);

/** A box to choose from [value, text]s. */
function chooser(options, chosen, onChoose) {
  const made = options.map(([value, text]) => element("option", { value, ...(value === chosen ? { selected: "" } : {}) }, text));
  return element("select", { onchange: (event) => onChoose(event.target.value) }, ...made);
}

function clauseTable(clauses) {
  const rows = clauses.map(({ side, what, value, low, high, limit, verdict }) => [
    SIDE_NAMES[side], visible(what), shown(asNumber(value)), `${shown(asNumber(low))} to ${shown(asNumber(high))}`, shown(asNumber(limit)), badge(verdict),
  ]);
  return plainTable(["tokens of the", "clause", "figure", "bounds", "limit", ""], rows);
}

function worstTable(tokens) {
  const rows = tokens.map(({ train, infer, sequence, index, id, before, token, after }) => [
    shown(asNumber(train) - asNumber(infer)),
    element("span.context", {}, oneLine(before), element("mark", {}, oneLine(token) || "·"), oneLine(after)),
    ...[asNumber(train), asNumber(infer)].map(shown),
    ...[sequence + 1, index, id].map(String),
  ]);
  return plainTable(["Δ", "in its text", "train", "infer", "sequence", "token", "id"], rows);
}

const oneLine = (text) => visible(text).replaceAll("\n", "↵");
