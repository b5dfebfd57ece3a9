"use strict";
/* Follows a run: when the server of `lockstep watch` has a newer page, loads it. Samples are left to their reader. */

const POLL_MS = 2000;

function offerReload() {
  if (byId("renew")) return;
  byId("samples").prepend(element("button", { id: "renew", type: "button", onclick: () => location.reload() }, "show the samples logged since"));
}

async function follow() {
  const shown = (await fetch(location.pathname, { method: "HEAD" })).headers.get("ETag");
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      const newest = (await fetch(location.pathname, { method: "HEAD" })).headers.get("ETag");
      if (newest === shown) continue;
      if (wanted() !== "samples") location.reload();
      else offerReload();
    } catch {
      byId("made").textContent = `${byId("made").textContent.replace(/; .*/, "")}; lockstep watch does not answer`;
    }
  }
}

follow();
