"use strict";
/* The table of each validation: held-out prompts with their responses, or with the answer that was chosen and the one that was rejected. */

/** Rows of the index that are of held-out prompts, by run and step: [{run, step, rows}], the newest first. */
function heldOutTables(samples) {
  const { held_out: heldOut, run, step } = samples.columns;
  const tables = new Map();
  heldOut.forEach((flag, row) => {
    if (flag !== 1) return;
    const key = `${run[row]} ${step[row]}`;
    if (!tables.has(key)) tables.set(key, { run: run[row], step: step[row], rows: [] });
    tables.get(key).rows.push(row);
  });
  return [...tables.values()].sort((one, other) => other.step - one.step || one.run - other.run);
}

async function heldOutView() {
  const indexes = await Promise.all(state.runs.map((_, run) => inflated(`samples-${run}`)));
  const samples = joined(indexes.map(unpack));
  const tables = heldOutTables(samples);
  if (!tables.length) return [element("p.empty", {}, "No response to a held-out prompt has been logged. What a run measures on held-out rows is under Curves, as validation/… or val/….")];
  const place = element("div.table");
  const name = ({ run, step }) => (state.runs.length > 1 ? `${state.runs[run].name}, step ${step}` : `step ${step}`);
  const show = async (number) => place.replaceChildren(...(await heldOutTable(samples, tables[number])));
  const options = tables.map((table, number) => element("option", { value: number }, name(table)));
  const chooser = element("select", { id: "validation", onchange: (event) => show(Number(event.target.value)) }, ...options);
  await show(0);
  return [element("div.controls", {}, element("label", {}, "validation after ", chooser)), place];
}

/** One validation's rows with their texts, which lie in blocks. */
async function heldOutTable(samples, { rows }) {
  const { run, block, place, score, truncated } = samples.columns;
  const blocks = new Map();
  for (const row of rows) {
    const name = `tokens-${run[row]}-${block[row]}`;
    if (!blocks.has(name)) blocks.set(name, unpack(await inflated(name)));
  }
  const pairs = [];
  const answers = [];
  for (const row of rows) {
    const own = blocks.get(`tokens-${run[row]}-${block[row]}`).header.rows[place[row]];
    const [prompt, response, rejected, answer] = [own.prompt, own.response, own.rejected, own.answer].map((text) => visible(text ?? ""));
    if ("status" in own || "rejected" in own) pairs.push([own.status, prompt, response, shown(score[row]), rejected, shown(own.rejected_score)]);
    else answers.push([prompt, response, shown(score[row]) + (truncated[row] ? ", cut off" : ""), answer]);
  }
  const tables = [[["pair", "prompt", "chosen", "score", "rejected", "score"], pairs], [["prompt", "response", "score", "answer of its row"], answers]];
  return tables.filter(([, cells]) => cells.length).map(([head, cells]) => plainTable(head, cells));
}
