"use strict";
/* Where inside the model the two sides part: the error at each cut, given the same inputs. */

const FARTHEST = 5;

function layersView({ location: found }) {
  const title = element("h2", {}, "Layers");
  const layers = Object.entries(found?.cuts ?? {});
  if (!layers.length) return [title, element("p.empty", {}, "Layers have not been compared: lockstep doctor locate does, where both sides show them.")];
  const nodes = layers.map(([name, error], place) => ({ name, place, error: asNumber(error) }));
  const kinds = [...new Set(nodes.map(kindOf))];
  const traces = () => kinds.map((kind, number) => nodeTrace(kind, nodes.filter((node) => kindOf(node) === kind), number));
  const layout = () => titled("cut, in the order of computation", "relative error", "linear", { height: 300, closest: true });
  const exact = nodes.filter((node) => node.error === 0).length;
  const note = [exact ? `${exact} of ${nodes.length} agree to the bit and lie below the axis` : "", oddNodes(nodes)].filter(Boolean).join(" · ");
  const farthest = [...nodes].sort((a, b) => sortable(b.error) - sortable(a.error)).slice(0, FARTHEST);
  return [
    title,
    plotCard("layers", "error at each cut, given the same inputs", new Chart(traces, layout).place, element("small", {}, note)),
    plainTable(["farthest apart", "relative error"], farthest.map((node) => [element("code", {}, visible(node.name)), shown(node.error)])),
  ];
}

/** What a node is, by the end of its name: norms with norms, projections with projections. */
const kindOf = ({ name }) => name.split(".").at(-1);

const sortable = (error) => (Number.isNaN(error) ? Infinity : error);

function oddNodes(nodes) {
  const odd = nodes.filter((node) => !Number.isFinite(node.error)).length;
  return odd ? `${odd} not finite` : "";
}

function nodeTrace(kind, nodes, number) {
  return {
    mode: "markers", marker: { size: 7, color: phaseColour(number) }, name: visible(kind),
    x: nodes.map((node) => node.place), y: positive(nodes.map((node) => node.error)), text: nodes.map((node) => node.name),
  };
}
