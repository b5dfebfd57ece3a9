"use strict";
/* What the measurement rests on: repeats, backends, machine and libraries, options. */

function aboutView({ repeats, backends, environment, options }) {
  const names = Object.keys(backends);
  const [differing, same] = split(Object.values(backends));
  return [
    section("Repeats", element("p.lead", {}, "The same request again and again: does a backend say the same?"), repeatTable(repeats)),
    section("Where the backends differ", optionTable(names, differing)),
    element("details", {}, element("summary", {}, "What they share"), optionTable(names, same, true)),
    section("Environment", optionTable(["value"], split([environment])[1])),
    section("Options", optionTable(["value"], split([options])[1])),
  ];
}

function repeatTable(repeats) {
  if (!repeats.length) return element("p.empty", {}, "Nothing was repeated.");
  const rows = repeats.map(({ cell, backend, times, same_tokens, bitwise, rms }) => [visible(cell), backend, `${same_tokens} of ${times}`, `${bitwise} of ${times}`, shown(asNumber(rms))]);
  return plainTable(["cell", "backend", "same tokens", "same to the bit", "RMS of differences, nats"], rows);
}
