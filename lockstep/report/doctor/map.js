"use strict";
/* A map of sequences by position. A canvas, because images in data URLs would need a hole in the page's policy. */

/** Draws `values`, row by row, of the stretches between `edges`; NaN is blank, infinities have a colour of their own. */
class HeatMap {
  constructor() {
    this.canvas = element("canvas.heat", { role: "img" });
    this.axis = element("div.axis");
    this.legend = element("div.legend");
    this.tip = element("div.tip", { role: "tooltip", hidden: "" });
    this.place = element("div", {}, this.canvas, this.axis, this.legend);
    document.body.append(this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  show({ rows, edges }, values) {
    Object.assign(this, { rows, edges, values });
    const [width, height] = [edges.length - 1, rows.length];
    Object.assign(this.canvas, { width, height });
    this.canvas.style.height = `${height * Math.min(Math.max(320 / height, 6), 18)}px`;
    this.canvas.setAttribute("aria-label", `|Δ| of ${height} sequences by ${width} stretches of their responses`);
    const positive = values.filter((value) => Number.isFinite(value) && value > 0).sort();
    this.ends = positive.length ? [positive[Math.floor(0.05 * positive.length)], positive.at(-1)].map(Math.log) : [0, 1];
    const image = new ImageData(width, height);
    values.forEach((value, at) => image.data.set(this.colour(value), 4 * at));
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    this.explain(positive.length);
  }

  /** Red, green, blue and opacity. */
  colour(value) {
    if (Number.isNaN(value)) return [0, 0, 0, 0];
    if (!Number.isFinite(value)) return [...channels(getComputedStyle(document.body).getPropertyValue("--odd").trim()), 255];
    const [low, high] = this.ends;
    return [...mixed("warm", value > 0 ? Math.max((Math.log(value) - low) / (high - low || 1), 0.04) : 0), 255];
  }

  explain(isAnyPositive) {
    this.axis.replaceChildren(element("span", {}, "1"), element("span", {}, "token of the response"), element("span", {}, String(this.edges.at(-1) - 1)));
    const ramp = element("span.ramp");
    ramp.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((share) => css(mixed("warm", share))).join(", ")})`;
    const ends = this.ends.map((end) => element("span.ends", {}, shown(Math.exp(end))));
    const scale = isAnyPositive ? [ends[0], ramp, ends[1], element("span", {}, "nats, logarithmic")] : [element("span", {}, "no difference anywhere")];
    const odd = this.values.some((value) => value === Infinity) ? [element("span.odd"), element("span", {}, "not finite")] : [];
    this.legend.replaceChildren(...scale, ...odd);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const [width, height] = [this.edges.length - 1, this.rows.length];
    const column = Math.min(Math.floor(((event.clientX - box.left) / box.width) * width), width - 1);
    const row = Math.min(Math.floor(((event.clientY - box.top) / box.height) * height), height - 1);
    if (column < 0 || row < 0) return;
    const [first, last] = [this.edges[column], this.edges[column + 1] - 1];
    const value = this.values[row * width + column];
    this.tip.replaceChildren(
      element("strong", {}, `sequence ${this.rows[row] + 1}`),
      element("small", {}, first === last ? `token ${first}` : `tokens ${first} to ${last}`),
      element("dl", {}, element("dt", {}, "largest |Δ|"), element("dd", {}, Number.isNaN(value) ? "nothing scored" : shown(value))),
    );
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8)}px`;
    this.tip.style.top = `${Math.max(8, event.clientY - this.tip.offsetHeight - 10)}px`;
  }
}
