"use strict";
/* All samples of all runs as one table, with one of them opened beside it. */

/** The indexes of all runs, one behind the other. `columns.run` says whose a row is, `prompts` and `responses` are texts. */
function joined(indexes) {
  const columns = {};
  for (const name of Object.keys(indexes[0].columns)) {
    columns[name] = Float32Array.from(indexes.flatMap((index) => Array.from(index.columns[name])));
  }
  columns.run = Float32Array.from(indexes.flatMap((index, run) => Array(index.header.count).fill(run)));
  const responses = indexes.flatMap(({ header }) => (header.count ? header.responses.split("\n") : []));
  return { count: columns.run.length, columns, responses, prompts: indexes.map((index) => index.header.prompts) };
}

class SamplesView {
  constructor(indexes) {
    Object.assign(this, joined(indexes));
    this.order = this.inGroups();
    this.isGrouped = true;
    this.filter = { text: "", from: -Infinity, to: Infinity, onlyTruncated: false };
    this.tokens = new TokenView();
    this.table = new LongTable(this.tableColumns(), (column, isDescending) => this.sort(column, isDescending), (row) => this.open(row), (row, before) => this.begins(row, before));
    this.found = element("output.found");
  }

  get place() {
    if (!this.count) return element("p.empty", {}, "No samples have been logged: run.num_logged_samples says how many a step writes.");
    return element("div.samples", {}, element("div.browser", {}, this.controls(), this.table.place), this.tokens.place);
  }

  /** Whose group a row is of: the responses of one step to one prompt. */
  group(row) {
    const { run, step, prompt } = this.columns;
    return `${run[row]} ${step[row]} ${prompt[row]}`;
  }

  /** Rows as logged, but the newest step first, and those of one group together, where its first one stands. */
  inGroups() {
    this.groups = new Map();
    for (let row = 0; row < this.count; row++) {
      const name = this.group(row);
      if (!this.groups.has(name)) this.groups.set(name, []);
      this.groups.get(name).push(row);
    }
    const { step } = this.columns;
    return Uint32Array.from([...this.groups.values()].sort(([one], [other]) => step[other] - step[one]).flat());
  }

  /** True where a group of several begins below another row, as long as rows are in groups. */
  begins(row, before) {
    const [own, other] = [this.groups.get(this.group(row)), this.groups.get(this.group(before))];
    return this.isGrouped && own !== other && (own.length > 1 || other.length > 1);
  }

  openFirst() {
    if (this.table.rows.length && this.opened === undefined) this.table.choose(0);
  }

  prompt(row) {
    return this.prompts[this.columns.run[row]][this.columns.prompt[row]];
  }

  tableColumns() {
    const number = (name, title, width) => ({ title, width, isNumber: true, key: () => this.columns[name], text: (row) => shown(this.columns[name][row]) });
    const text = (title, width, of) => ({ title, width, text: of, key: () => ranks(Array.from({ length: this.count }, (_, row) => of(row))) });
    const run = { title: "run", width: "minmax(50px, 110px)", key: () => this.columns.run, text: (row) => state.runs[this.columns.run[row]].name };
    const heldOut = { title: "held out", width: "62px", key: () => this.columns.held_out, text: (row) => (this.columns.held_out[row] === 1 ? "held out" : "") };
    return [
      ...(state.runs.length > 1 ? [run] : []),
      number("step", "step", "48px"),
      ...(this.columns.held_out.includes(1) ? [heldOut] : []),
      number("score", "score", "58px"),
      number("shaped_score", "shaped", "58px"),
      number("tokens", "tokens", "56px"),
      { title: "cut", width: "32px", key: () => this.columns.truncated, text: (row) => (this.columns.truncated[row] ? "cut" : "") },
      text("response", "minmax(140px, 5fr)", (row) => this.responses[row]),
      text("prompt", "minmax(80px, 3fr)", (row) => this.prompt(row)[1]),
    ];
  }

  controls() {
    const set = (name, convert) => (event) => {
      this.filter[name] = convert(event.target);
      this.refresh();
    };
    const step = (empty) => (input) => (input.value === "" ? empty : Number(input.value));
    return element(
      "div.controls",
      {},
      element("input", { id: "search", type: "search", placeholder: "text in prompt or response…", "aria-label": "show samples that begin with a text that holds", oninput: set("text", (input) => input.value.toLowerCase()) }),
      element("label", {}, "steps ", element("input.step", { id: "from-step", type: "number", min: 0, oninput: set("from", step(-Infinity)) }), " – ", element("input.step", { id: "to-step", type: "number", min: 0, oninput: set("to", step(Infinity)) })),
      element("label", {}, element("input", { type: "checkbox", onchange: set("onlyTruncated", (input) => input.checked) }), " only cut off"),
      this.found,
    );
  }

  sort(column, isDescending) {
    this.isGrouped = false;
    this.order = ordered(column.key(), isDescending);
    this.refresh();
  }

  refresh() {
    const { run, step, truncated } = this.columns;
    const { text, from, to, onlyTruncated } = this.filter;
    const holds = (words) => words.toLowerCase().includes(text);
    const rows = this.order.filter(
      (row) =>
        state.shown.has(run[row]) &&
        step[row] >= from &&
        step[row] <= to &&
        (!onlyTruncated || truncated[row]) &&
        (!text || holds(this.responses[row]) || this.prompt(row).some(holds)),
    );
    this.table.show(rows);
    this.found.textContent = `${rows.length.toLocaleString("en")} of ${this.count.toLocaleString("en")}`;
  }

  /** Opens a row's block, unless another row has been chosen meanwhile. */
  async open(row) {
    this.opened = row;
    const { run, block, place, step, score, shaped_score, tokens, truncated } = this.columns;
    const name = `tokens-${run[row]}-${block[row]}`;
    if (this.block?.name !== name) this.block = { name, ...unpack(await inflated(name)) };
    if (this.opened !== row || this.block.name !== name) return;
    const facts = [
      ["step", String(step[row])],
      ["score", shown(score[row])],
      ["shaped", shown(shaped_score[row])],
      ["tokens", shown(tokens[row]) + (truncated[row] ? ", cut off" : "")],
      ["row", this.prompt(row)[0]],
    ];
    const group = this.groups.get(this.group(row));
    if (group.length > 1) facts.push(["of this prompt", `${group.indexOf(row) + 1} of ${group.length}`]);
    const recipe = state.runs[run[row]].recipe;
    if (state.runs.length > 1) facts.unshift(["run", state.runs[run[row]].name]);
    const whitened = Object.entries(recipe).some(([key, value]) => key.endsWith(".whiten_advantages") && value === true);
    const told = this.block.header.rows[place[row]];
    facts.push(...Object.entries(told.parts).map(([name, value]) => [`reward ${name}`, shown(value)]));
    if (told.logged_as) facts.push(["logged as", told.logged_as]);
    this.tokens.show(facts, told, this.block.columns, whitened);
  }
}
