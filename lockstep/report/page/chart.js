"use strict";
/* Charts that are drawn when they come into sight. */

/** How a chart looks: what is common to all of all pages, then what each of `more` says, axis by axis. */
function chartLayout(...more) {
  const style = getComputedStyle(document.body);
  const [ink, line] = ["--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { size: 11 }, exponentformat: "e" };
  return {
    margin: { l: 44, r: 10, t: 6, b: 28 },
    height: 210,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, color: ink, size: 11 },
    showlegend: false,
    dragmode: "zoom",
    hovermode: "x unified",
    hoverlabel: { bgcolor: style.getPropertyValue("--raised").trim(), bordercolor: line, font: { color: style.color } },
    ...Object.assign({}, ...more),
    xaxis: Object.assign({ ...axis, showgrid: false, spikecolor: ink, spikethickness: 1, spikedash: "dot" }, ...more.map((part) => part.xaxis)),
    yaxis: Object.assign({ ...axis, automargin: true }, ...more.map((part) => part.yaxis)),
  };
}

/** The plotting library, run when a first chart is to be drawn: samples need not wait for it. */
const plotting = () => (plotting.ready ??= runLibrary("plotly"));

/**
 * One chart. `traces` is asked anew at each drawing; `layout` says what differs from the common one. A page may say what
 * all its charts have in common, and what happens when the reader zooms one.
 */
class Chart {
  static all = [];
  static common = () => ({});
  static zoomed = () => {};
  static sight = new IntersectionObserver(
    (entries) => entries.forEach((entry) => Chart.of(entry.target).seen(entry.isIntersecting)),
    { rootMargin: "200px" },
  );
  static of = (place) => Chart.all.find((chart) => chart.place === place);

  constructor(traces, layout = () => ({})) {
    this.traces = traces;
    this.layout = layout;
    this.place = element("div.chart");
    this.isStale = true;
    this.isSeen = false;
    Chart.all.push(this);
    Chart.sight.observe(this.place);
  }

  seen(isSeen) {
    this.isSeen = isSeen;
    this.refresh();
  }

  async refresh() {
    if (!this.isSeen || !this.isStale) return;
    this.isStale = false;
    await plotting();
    await new Promise((resolve) => setTimeout(resolve)); // so that charts appear one by one
    const isNew = this.place.data === undefined;
    Plotly.react(this.place, this.traces(), chartLayout(Chart.common(), this.layout()), { displayModeBar: false, responsive: true });
    if (isNew) this.place.on("plotly_relayout", (change) => Chart.zoomed(this, change));
  }

  /** Draws it anew: what its traces are made of has changed. */
  redraw() {
    this.isStale = true;
    this.refresh();
  }

  static refreshAll = () => Chart.all.forEach((chart) => chart.redraw());
}

function oncePerFrame(work) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      work();
    });
  };
}
