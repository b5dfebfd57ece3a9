"use strict";
/* A table of any number of rows. Only those in sight are elements; what is sorted are row numbers. */

const ROW_HEIGHT = 30;
const TALLEST = 8e6; // pixels; browsers draw nothing beyond some ten million, so longer tables scroll in larger steps

/** Row numbers in the order of their keys, equal ones in their old order, NaN last. Two passes of a radix sort. */
function ordered(values, isDescending) {
  const bits = new Uint32Array(Float32Array.from(values).buffer);
  const flip = isDescending ? 0xffffffff : 0;
  const keys = bits.map((bit, row) =>
    Number.isNaN(values[row]) ? 0xffffffff : (((bit & 0x80000000 ? ~bit : bit | 0x80000000) ^ flip) >>> 0),
  );
  const rows = Uint32Array.from(keys, (_, row) => row);
  return radixPass(radixPass(rows, keys, 0), keys, 16);
}

/** The rows, stably sorted by the sixteen bits of their keys from `shift` on. */
function radixPass(rows, keys, shift) {
  const starts = new Uint32Array(65537);
  for (const row of rows) starts[((keys[row] >>> shift) & 0xffff) + 1]++;
  for (let digit = 0; digit < 65536; digit++) starts[digit + 1] += starts[digit];
  const sorted = new Uint32Array(rows.length);
  for (const row of rows) sorted[starts[(keys[row] >>> shift) & 0xffff]++] = row;
  return sorted;
}

/** Each text's place among all of them in order, so that texts sort as numbers do. */
function ranks(texts) {
  const rows = Array.from(texts, (_, row) => row).sort((a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : 0));
  const places = new Float32Array(texts.length);
  let place = 0;
  rows.forEach((row, i) => {
    if (i && texts[row] !== texts[rows[i - 1]]) place++;
    places[row] = place;
  });
  return places;
}

/**
 * Columns are `{title, width, text(row), isNumber}`. `onSort(column, isDescending)` is called by a click on a head,
 * `onSelect(row)` when a row is chosen by mouse or arrow keys. `begins(row, before)` says where a line is drawn above a row.
 */
class LongTable {
  constructor(columns, onSort, onSelect, begins = () => false) {
    Object.assign(this, { columns, onSort, onSelect, begins, rows: new Uint32Array(0), chosen: -1, sorted: null });
    this.heads = columns.map((column, i) =>
      element("button.head", { type: "button", role: "columnheader", onclick: () => this.sortBy(i) }, column.title),
    );
    this.pane = element("div.pane");
    this.spacer = element("div.spacer", {}, this.pane);
    this.scroller = element("div.scroller", { tabindex: 0, role: "grid", "aria-label": "samples" }, this.spacer);
    this.place = element("div.longtable", {}, element("div.heads", { role: "row" }, ...this.heads), this.scroller);
    this.place.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.scroller.addEventListener("scroll", oncePerFrame(() => this.draw()));
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.pane.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  /** Shows these rows, in this order; the chosen row stays chosen. */
  show(rows) {
    const row = this.rows[this.chosen];
    this.rows = rows;
    this.chosen = row === undefined ? -1 : rows.indexOf(row);
    this.scroller.setAttribute("aria-rowcount", rows.length);
    this.spacer.style.height = `${Math.min(rows.length * ROW_HEIGHT, TALLEST)}px`;
    this.draw();
  }

  /** Pixels of rows per pixel of scrolling: 1, but for tables that are too tall. */
  get stride() {
    const sight = this.scroller.clientHeight;
    const spare = Math.min(this.rows.length * ROW_HEIGHT, TALLEST) - sight;
    return spare > 0 ? (this.rows.length * ROW_HEIGHT - sight) / spare : 1;
  }

  draw() {
    const top = this.scroller.scrollTop * this.stride;
    const first = Math.floor(top / ROW_HEIGHT);
    const count = Math.min(Math.ceil(this.scroller.clientHeight / ROW_HEIGHT) + 1, this.rows.length - first);
    while (this.pane.childElementCount < count) this.pane.append(this.emptyRow());
    [...this.pane.children].forEach((line, i) => {
      line.hidden = i >= count;
      if (i < count) this.fill(line, first + i, (first + i) * ROW_HEIGHT - top);
    });
  }

  emptyRow() {
    const cells = this.columns.map((column) => element(column.isNumber ? "span.number" : "span", { role: "gridcell" }));
    return element("div.line", { role: "row" }, ...cells);
  }

  fill(line, at, offset) {
    line.style.transform = `translateY(${offset}px)`;
    line.dataset.at = at;
    line.setAttribute("aria-rowindex", at + 1);
    line.setAttribute("aria-selected", at === this.chosen);
    line.classList.toggle("begins", at > 0 && this.begins(this.rows[at], this.rows[at - 1]));
    this.columns.forEach((column, i) => (line.children[i].textContent = visible(column.text(this.rows[at]))));
  }

  clicked(event) {
    const line = event.target.closest(".line");
    if (line) this.choose(Number(line.dataset.at));
  }

  choose(at) {
    this.chosen = Math.min(Math.max(at, 0), this.rows.length - 1);
    this.reveal();
    this.draw();
    this.onSelect(this.rows[this.chosen]);
  }

  /** Scrolls as little as needed to have the chosen row in sight. */
  reveal() {
    const top = this.scroller.scrollTop * this.stride;
    const lowest = this.chosen * ROW_HEIGHT;
    const highest = lowest + ROW_HEIGHT - this.scroller.clientHeight;
    const wanted = Math.min(Math.max(top, highest), lowest);
    if (wanted !== top) this.scroller.scrollTop = wanted / this.stride;
  }

  key(event) {
    const page = Math.floor(this.scroller.clientHeight / ROW_HEIGHT);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !this.rows.length) return;
    event.preventDefault();
    this.choose(this.chosen + moves[event.key]);
  }

  sortBy(i) {
    const isDescending = this.sorted?.column === i && !this.sorted.isDescending;
    this.sorted = { column: i, isDescending };
    this.heads.forEach((head, k) => {
      if (k === i) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.onSort(this.columns[i], isDescending);
    this.scroller.scrollTop = 0;
  }
}
