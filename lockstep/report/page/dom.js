"use strict";
/* Elements and numbers. Text reaches the page here alone, and always as text: there is no innerHTML. */

/** `element("button.tab", {type: "button", onclick: f}, "text", child)`; strings become text nodes. */
function element(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const made = document.createElement(tag);
  made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const byId = (name) => document.getElementById(name);

/** A number for people: four digits, an exponent only where zeros would be counted. */
function shown(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(size >= 1e4 ? 6 : 4)));
  return text.replaceAll("-", "−");
}

/** Text in which nothing hides: control characters as their pictures, such as ␛, and those that turn or break lines by name. */
function visible(text) {
  const picture = (character) => (character === "\x7f" ? "␡" : String.fromCharCode(0x2400 + character.charCodeAt(0)));
  const name = (character) => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return text
    .replace(/[\x00-\x08\x0b-\x1f\x7f]/g, picture)
    .replace(/[\x80-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g, name);
}

/** Text whose numbers keep their percent sign and their interval on the line. */
const kept = (text) => text.replace(/(\d) (?=%)/g, "$1\u00a0").replace(/(\[[^\s\]]+,) (?=[^\s\]]+\])/g, "$1\u00a0");

/** A table of plain cells; `rows` are lists of text or elements. */
function plainTable(head, rows) {
  const cells = (kind, row) => row.map((cell) => element(kind, {}, cell));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row))));
  return element("div.wide", {}, element("table.plain", {}, element("thead", {}, element("tr", {}, ...cells("th", head))), body));
}

/** A bar that fills a share of its track. */
function shareBar(share, background = "") {
  const bar = element("span.bar");
  Object.assign(bar.style, { width: `${100 * share}%`, background });
  return element("span.track", {}, bar);
}

const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);
