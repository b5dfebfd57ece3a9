"use strict";
/* Data blocks: base64 of gzip in elements that a browser neither shows nor runs. `columns.py` packs what `unpack` reads. */

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

/** A table as `pack` wrote it: its header, and each column as a Float32Array. */
function unpack(bytes) {
  const headEnd = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, headEnd)));
  const columns = {};
  header.columns.forEach((name, i) => {
    columns[name] = floats(bytes.subarray(headEnd + 4 * i * header.count), header.count);
  });
  return { header, columns };
}

/** Numbers whose first bytes lie together, then their second bytes, and so on. */
function floats(planes, count) {
  const bytes = new Uint8Array(4 * count);
  for (let plane = 0; plane < 4; plane++) {
    for (let i = 0; i < count; i++) bytes[4 * i + plane] = planes[plane * count + i];
  }
  return new Float32Array(bytes.buffer);
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
