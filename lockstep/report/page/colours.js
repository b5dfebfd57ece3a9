"use strict";
/* Colours: one per run, and scales for tokens. Text on a colour is black or white, whichever is easier to read. */

const darkMode = window.matchMedia("(prefers-color-scheme: dark)");
const themed = (light, dark) => (darkMode.matches ? dark : light);

const RUN_COLOURS = {
  light: ["#2563a8", "#cf5a1f", "#22805c", "#8446b0", "#a3781c", "#bf3a68", "#4d5d6c", "#128a98"],
  dark: ["#78b2ee", "#f0935c", "#5fc49c", "#c08fe6", "#dcb45a", "#ef7fa3", "#a3b3c2", "#4fc6d2"],
};
const MORE_COLOURS = {
  light: ["#e0a800", "#7fb5e6", "#8c3b2e", "#8fa02b", "#e58fb0", "#1f3d6b", "#6fcfc0", "#b79be0"],
  dark: ["#a87b12", "#4a7fb8", "#c4674f", "#93a53a", "#b8527e", "#d5dbe2", "#2f8d7a", "#8a63c2"],
};
const runColour = (run) => themed(RUN_COLOURS.light, RUN_COLOURS.dark)[run % 8];
/** One colour for each of many: those of runs, then others, then around the circle. */
function phaseColour(number) {
  const listed = themed([...RUN_COLOURS.light, ...MORE_COLOURS.light], [...RUN_COLOURS.dark, ...MORE_COLOURS.dark]);
  return listed[number] ?? `hsl(${(number * 137.5) % 360}, 45%, ${themed(38, 72)}%)`;
}

/* From the colour of the paper, where nothing is remarkable, to one that stands out. */
const PALETTES = {
  warm: {
    light: ["#f7f6f3", "#fbe3b8", "#f5b073", "#dc6a4c", "#8f2a4d"],
    dark: ["#1d1f23", "#4b3823", "#8c5528", "#d67a45", "#ffc69a"],
  },
  cool: {
    light: ["#f7f6f3", "#cfe6df", "#8cc6bd", "#3f9095", "#17525e"],
    dark: ["#1d1f23", "#21464a", "#2f7075", "#55a5a3", "#b2e6da"],
  },
  diverging: {
    light: ["#a63d17", "#e59d70", "#f7f6f3", "#86b6dc", "#1d5c9a"],
    dark: ["#ff9d68", "#93522e", "#1d1f23", "#33658f", "#83c1f5"],
  },
};

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** The colour at `share` (0 … 1) of a palette, as three channels. */
function mixed(palette, share) {
  const stops = themed(PALETTES[palette].light, PALETTES[palette].dark).map(channels);
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  return stops[below].map((channel, i) => Math.round(channel + (stops[below + 1][i] - channel) * (place - below)));
}

const css = (rgb) => `rgb(${rgb.join(", ")})`;

/** Relative luminance, as WCAG 2 defines it. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white: the contrast with the background is at least 4.5 to 1. */
const textOn = (rgb) => (luminance(rgb) > 0.179 ? "#000" : "#fff");

/** The largest magnitude but for the outermost hundredth, so that one odd token does not grey out the others. */
function reach(values) {
  const sizes = values.filter(Number.isFinite).map(Math.abs).sort();
  const most = sizes[Math.floor(0.99 * (sizes.length - 1))];
  return most || sizes[sizes.length - 1] || 1;
}
