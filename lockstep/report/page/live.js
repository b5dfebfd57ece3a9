"use strict";
/* The page of a run that is under way: data comes from the server that the page came from, again and again. */

const POLL_MS = 2000;
const embedded = inflated;

/** A block that is not in the page is asked for. */
inflated = async (name) => {
  if (byId(name)) return embedded(name);
  const reply = await fetch(`data/${name}`, { cache: "no-store" });
  if (!reply.ok) throw new Error(`the server has no ${name}`);
  return new Uint8Array(await reply.arrayBuffer());
};

/** Calls `show(report)` whenever the runs have moved on, and `lose()` when the server does not answer. */
async function followRuns(show, lose) {
  let tag = "";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    try {
      const reply = await fetch("data/report", { cache: "no-store", headers: { "If-None-Match": tag } });
      if (reply.status === 304) continue;
      if (!reply.ok) throw new Error(String(reply.status));
      tag = reply.headers.get("ETag") ?? "";
      show(await reply.json());
    } catch {
      lose();
    }
  }
}
