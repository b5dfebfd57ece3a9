"use strict";
/* Charts that are drawn when they come into sight. */

/**
 * A trace is `{name, x, y, mode, line: {color, width, dash, shape}, marker: {size, color, ring}, opacity, stacked, text,
 * silent, band}`; null in y is a gap, and band the color between it and the next trace. A layout is `{height, legend, closest, xaxis, yaxis}`, an axis `{title, type, range,
 * include}`: `include` are values that the axis shows in any case.
 */
const DASHES = { dot: [2, 3], dash: [6, 4] };
const SHAPES = { vh: -1, hv: 1 };

/** The plotting library, run when a first chart is to be drawn: samples need not wait for it. */
const plotting = () => (plotting.ready ??= runLibrary("uplot"));

/**
 * One chart. `traces` is asked anew at each drawing; `layout` says what differs from the common one. A page may say what
 * all its charts have in common, and what happens when the reader zooms one.
 */
class Chart {
  static all = [];
  static common = () => ({});
  static zoomed = (chart, range) => {
    chart.range = range;
    chart.redraw();
  };
  static sight = new IntersectionObserver(
    (entries) => entries.forEach((entry) => Chart.of(entry.target)?.seen(entry.isIntersecting)),
    { rootMargin: "200px" },
  );
  static size = new ResizeObserver((entries) => entries.forEach((entry) => Chart.of(entry.target)?.fit()));
  static of = (place) => Chart.all.find((chart) => chart.place === place);

  constructor(traces, layout = () => ({})) {
    this.traces = traces;
    this.layout = layout;
    this.range = null;
    this.place = element("div.chart");
    this.isStale = true;
    this.isSeen = false;
    Chart.all.push(this);
    Chart.sight.observe(this.place);
    Chart.size.observe(this.place);
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
    this.drawNow();
  }

  drawNow() {
    this.isStale = false;
    this.draw(this.traces(), merged(Chart.common(), this.layout()));
  }

  /** Draws the charts on paper that were never in sight; the library is there when any was. */
  static drawAll = () => window.uPlot && Chart.all.filter((chart) => chart.isStale && chart.place.clientWidth).forEach((chart) => chart.drawNow());

  draw(traces, layout) {
    hideChartTip();
    this.drawing?.destroy();
    const height = (layout.height ?? 210) - (layout.legend ? 26 : 0);
    const legend = layout.legend ? [chartLegend(traces)] : [];
    const canvas = element("div");
    this.place.replaceChildren(...legend, canvas);
    Object.assign(this.place, { data: traces, layout }); // what is drawn; tests ask the element
    const drawn = layout.yaxis.type === "log" ? traces.map((trace) => ({ ...trace, y: trace.y.map(positiveOnly) })) : traces;
    const ordered = stacked(drawn);
    const [places, columns] = aligned(ordered, layout.xaxis.type === "log");
    const ends = layout.xaxis.range ?? this.range ?? xRange(places, layout, traces);
    const options = chartOptions(this, ordered, layout, { places, traces, ends });
    this.drawing = new uPlot({ ...options, width: this.place.clientWidth || 300, height }, [places, ...columns], canvas);
  }

  fit() {
    const width = this.place.clientWidth;
    if (this.drawing && width && width !== this.drawing.width) this.drawing.setSize({ width, height: this.drawing.height });
  }

  /** Draws it anew: what its traces are made of has changed. */
  redraw() {
    this.isStale = true;
    this.refresh();
  }

  static refreshAll = () => {
    const gone = Chart.all.filter((chart) => !chart.place.isConnected && chart.drawing);
    gone.forEach((chart) => chart.drawing.destroy());
    Chart.all = Chart.all.filter((chart) => !gone.includes(chart));
    Chart.all.forEach((chart) => chart.redraw());
  };
}

const merged = (...parts) => ({
  ...Object.assign({}, ...parts),
  xaxis: Object.assign({}, ...parts.map((part) => part.xaxis)),
  yaxis: Object.assign({}, ...parts.map((part) => part.yaxis)),
});

const positiveOnly = (value) => (value > 0 ? value : null);

/** Traces with stacked ones on top of those before them, the highest first, so that each covers what lies above it. */
function stacked(traces) {
  const heights = new Map();
  const raised = traces.filter((trace) => trace.stacked).map((trace) => {
    const y = trace.y.map((value, i) => {
      const height = (heights.get(trace.x[i]) ?? 0) + (value ?? 0);
      heights.set(trace.x[i], height);
      return height;
    });
    return { ...trace, y };
  });
  return [...raised.reverse(), ...traces.filter((trace) => !trace.stacked)];
}

/** All places on the x axis, in order, and each trace's values at them: undefined where it has none, null for a gap. */
function aligned(traces, isLogarithmic) {
  const isPlace = (x) => Number.isFinite(x) && (!isLogarithmic || x > 0);
  const places = [...new Set(traces.flatMap((trace) => trace.x.filter(isPlace)))].sort((a, b) => a - b);
  const columns = traces.map((trace) => {
    const values = new Map(trace.x.map((x, i) => [x, trace.y[i]]));
    return places.map((place) => values.get(place));
  });
  return [places, columns];
}

function xRange(places, layout, traces) {
  if (!places.length) return layout.xaxis.type === "log" ? [1, 10] : [0, 1];
  const [first, last] = [places[0], places.at(-1)];
  if (layout.xaxis.type === "log") return first === last ? [first / 2, last * 2] : [first / 1.05, last * 1.05];
  if (first === last || traces.some((trace) => trace.stacked)) return [first - 0.5, last + 0.5];
  const edge = 0.015 * (last - first);
  return [first - edge, last + edge];
}

/** The ends of the y axis for values between `low` and `high`. */
function yRange(low, high, { type, include = [] }) {
  const values = [low, high, ...include].filter((value) => Number.isFinite(value) && (type !== "log" || value > 0));
  if (!values.length) return type === "log" ? [0.1, 1] : [0, 1];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (type === "log") return least === most ? [least / 2, most * 2] : [least / 1.2, most * 1.2];
  const edge = most > least ? 0.07 * (most - least) : Math.abs(most) * 0.1 || 1;
  return [least >= 0 && least - edge < 0 ? 0 : least - edge, most + edge];
}

function chartOptions(chart, traces, layout, about) {
  const style = getComputedStyle(document.body);
  const [ink, line] = ["--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
  const font = `11px ${style.fontFamily}`;
  const axis = ({ title, type }, more) => ({
    stroke: ink, font, ticks: { stroke: line, width: 1, size: 4 }, values: (_, splits) => tickTexts(splits, type),
    ...(title ? { label: title, labelFont: font, labelSize: 18 } : {}), ...more,
  });
  const distribution = ({ type }) => (type === "log" ? { distr: 3 } : {});
  return {
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: {
      y: false, drag: { x: true, y: false, setScale: false, dist: 4 }, points: { size: 6 },
      bind: { dblclick: () => () => Chart.zoomed(chart, null) },
    },
    scales: {
      x: { time: false, ...distribution(layout.xaxis), auto: false, range: () => about.ends },
      y: { ...distribution(layout.yaxis), range: (_, low, high) => layout.yaxis.range ?? yRange(low, high, layout.yaxis) },
    },
    axes: [
      axis(layout.xaxis, { size: 26, gap: 2, space: 60, grid: { show: false }, incrs: layout.xaxis.steps ? WHOLE : undefined }),
      axis(layout.yaxis, { gap: 3, space: 34, grid: { stroke: line, width: 1 }, size: (_, texts) => 12 + 6.4 * Math.max(3, ...(texts ?? []).map((text) => text?.length ?? 0)) }),
    ],
    series: [{}, ...traces.map(traceSeries)],
    bands: traces.flatMap((trace, i) => (trace.band ? [{ series: [i + 1, i + 2], fill: trace.band }] : [])),
    hooks: {
      setSelect: [(plot) => plot.select.width > 0 && Chart.zoomed(chart, [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")])],
      setCursor: [(plot) => showChartTip(plot, about, layout)],
    },
  };
}

const WHOLE = [1, 2, 5].flatMap((digit) => Array.from({ length: 10 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);

function traceSeries(trace) {
  const color = trace.line?.color ?? trace.marker?.color;
  const isLine = (trace.mode ?? "lines").includes("lines");
  const hasMarkers = (trace.mode ?? "").includes("markers");
  const { size = 5, ring = false } = trace.marker ?? {};
  const paths = trace.stacked
    ? uPlot.paths.bars({ size: [1, 200] })
    : trace.line?.shape ? uPlot.paths.stepped({ align: SHAPES[trace.line.shape] }) : undefined;
  return {
    label: trace.name, stroke: color, width: isLine ? trace.line?.width ?? 1.6 : 0, alpha: trace.opacity ?? 1,
    dash: DASHES[trace.line?.dash], fill: trace.stacked ? color : undefined, ...(isLine ? (paths ? { paths } : {}) : { paths: () => null }),
    points: { show: hasMarkers, size: ring ? size + 4 : size, width: ring ? 2 : 0, stroke: trace.marker?.color ?? color, fill: ring ? "transparent" : trace.marker?.color ?? color },
  };
}

/** Texts of the marks on an axis: with as many digits as tell them apart. */
function tickTexts(splits, type) {
  const known = splits.filter((value) => value !== null);
  const most = Math.max(...known.map(Math.abs));
  if (type === "log") return splits.map((value) => (value === null ? "" : shown(value)));
  const gap = known.length > 1 ? known[1] - known[0] : most || 1;
  const isFar = most >= 1e6 || (most < 1e-3 && most > 0);
  const print = (value, digits) => (isFar ? value.toExponential(digits) : value.toFixed(digits));
  let digits = 0;
  while (digits < 12 && !known.every((value) => Math.abs(Number(print(value, digits)) - value) < 1e-3 * gap)) digits++;
  return splits.map((value) => (isFar && value === 0 ? "0" : tidy(print(value, digits))));
}

const tidy = (text) => text.replaceAll("-", "−").replace("e+", "e");

const legendEntry = ({ name, line, marker }) => {
  const swatch = element("span.swatch");
  swatch.style.background = marker?.color ?? line?.color;
  return element("span.entry", {}, swatch, visible(name));
};

const chartLegend = (traces) => element("div.entries", {}, ...traces.map(legendEntry));

/** The box that says what a chart shows under the pointer; one for all charts. */
const chartTip = element("div.chart-tip", { role: "tooltip", hidden: "" });
const hideChartTip = () => (chartTip.hidden = true);

function showChartTip(plot, { places, traces }, layout) {
  const at = plot.cursor.idx;
  if (at === null || at === undefined || plot.cursor.left < 0) return hideChartTip();
  const lines = traces.filter((trace) => !trace.silent).flatMap((trace) => {
    const index = trace.x.indexOf(places[at]);
    if (index < 0 || trace.y[index] === null || trace.y[index] === undefined) return [];
    const name = trace.text ? trace.text[index] : trace.name;
    return [[legendEntry({ ...trace, name }), shown(trace.y[index])]];
  });
  if (!lines.length) return hideChartTip();
  const head = layout.closest ? [] : [element("strong", {}, `${layout.xaxis.title ?? "step"} ${shown(places[at])}`)];
  if (!chartTip.isConnected) document.body.append(chartTip);
  chartTip.replaceChildren(...head, element("dl", {}, ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  chartTip.hidden = false;
  const box = plot.over.getBoundingClientRect();
  const left = box.left + plot.cursor.left + 14;
  const beside = left + chartTip.offsetWidth > window.innerWidth - 8 ? left - chartTip.offsetWidth - 28 : left;
  chartTip.style.left = `${Math.max(8, beside)}px`;
  chartTip.style.top = `${Math.max(8, box.top + plot.cursor.top - chartTip.offsetHeight - 10)}px`;
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
