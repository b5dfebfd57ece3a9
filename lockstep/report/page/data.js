"use strict";
/* Data blocks: base64 of gzip in elements that a browser neither shows nor runs. `samples.py` packs what `unpack` reads. */

/** The bytes of a block; one that the browser has not read yet is waited for. */
async function inflated(name) {
  const isWhole = (element) => element !== null && (element.nextSibling !== null || document.readyState !== "loading");
  if (!isWhole(document.getElementById(name)) && document.readyState === "loading") {
    await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
  }
  const stream = new Blob([fromBase64(document.getElementById(name).textContent)]).stream();
  return new Uint8Array(await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

/** Runs a library that lies in a block. The page's security policy knows its hash, so no other code could stand there. */
async function runLibrary(name) {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflated(name));
  document.head.append(script);
}

/** A table as `samples.py` packs it: its header, and each column as numbers, NaN for what is missing. */
function unpack(bytes) {
  const { header, columns } = JSON.parse(new TextDecoder().decode(bytes));
  for (const name of Object.keys(columns)) columns[name] = Float32Array.from(columns[name], (value) => (value === null ? NaN : Number(value)));
  return { header, columns };
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
