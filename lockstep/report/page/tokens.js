"use strict";
/* One rollout, token by token. */

/* What a token can be coloured by: a name, what it says, its palette, and where the palette begins and ends. */
const COLOURINGS = {
  logprob: { title: "log-probability", about: "of the learner before the update, nats; dark: a surprise", palette: "warm", ends: (size) => [0, -size] },
  gap: { title: "train − sample", about: "log-probability in training less that in sampling, nats", palette: "diverging", ends: (size) => [-size, size] },
  value: { title: "value", about: "what the critic expects, before the token", palette: "cool", ends: null },
  advantage: { title: "advantage", about: "as used in the loss", palette: "diverging", ends: (size) => [-size, size] },
  reward: { title: "reward", about: "of the token: the shaped score at the last one, less the KL where it is a part", palette: "diverging", ends: (size) => [-size, size] },
  kl: { title: "KL to reference", about: "estimate of the token, nats", palette: "diverging", ends: (size) => [-size, size] },
  return: { title: "return", about: "what the critic learns to expect", palette: "cool", ends: null },
  mask: { title: "mask", about: "1: trained on", palette: "cool", ends: () => [0, 1.6] },
};

/** What there is beside the answer that was preferred: [title, text] of the other one, of all scores, of judgments. */
function pairOf(row) {
  const replies = (title, texts) => (texts?.length ? [[title, texts.map((text) => text.trim()).join("\n––––\n")]] : []);
  return [
    ...(row.status ? [["Pair", row.scores ? `${row.status}; scores of all answers: ${row.scores.map((score) => score?.toFixed(2) ?? "none").join(", ")}` : row.status]] : []),
    ...(row.rejected === undefined ? [] : [[`Rejected${row.rejected_score === undefined ? "" : `, with score ${row.rejected_score.toFixed(2)}`}`, row.rejected]]),
    ...replies("Judgments of the response", row.chosen_judgments),
    ...replies("Judgments of the rejected one", row.rejected_judgments),
  ];
}

/** Shows rollouts in `place`, one at a time, coloured by what the reader chose last. */
class TokenView {
  constructor() {
    this.place = element("article.rollout", { "aria-live": "polite" }, element("p.empty", {}, "Choose a row: its tokens appear here."));
    this.tip = element("div.tip", { role: "tooltip", hidden: "" });
    this.colouring = "advantage";
    document.body.append(this.tip);
    this.place.addEventListener("pointerover", (event) => this.point(event.target));
    this.place.addEventListener("focusin", (event) => this.point(event.target));
    this.place.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.place.addEventListener("focusout", () => (this.tip.hidden = true));
    this.place.addEventListener("keydown", (event) => this.key(event));
  }

  /**
   * Args: `facts`, a list of [name, text] for the head; `row` of a block's header with prompt, response, answer, texts,
   * begin; `columns` of that block; `isWhitened`, whether advantages were.
   */
  show(facts, row, columns, isWhitened) {
    Object.assign(this, { row, columns, isWhitened });
    const names = Object.keys(COLOURINGS).filter((name) => name in columns && row.texts.length);
    if (names.length && !names.includes(this.colouring)) this.colouring = names[0];
    this.legend = element("div.legend");
    this.text = element("div.tokens", { dir: "ltr" });
    row.texts.forEach((text, i) => this.text.append(this.token(text, i))); // too many to be arguments of one call
    this.place.replaceChildren(
      element("dl.facts", {}, ...facts.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text)))),
      element("h3", {}, "Prompt"),
      element("div.text", { dir: "auto" }, visible(row.prompt ?? "")),
      element("h3", {}, "Response"),
      ...(names.length ? [this.chooser(names), this.legend, this.text] : []),
      ...(row.texts.join("") === row.response ? [] : [element("div.text", { dir: "auto" }, visible(row.response ?? ""))]),
      ...(row.answer ? [element("h3", {}, "Answer of its row"), element("div.text", { dir: "auto" }, visible(row.answer))] : []),
      ...pairOf(row).flatMap(([title, text]) => [element("h3", {}, title), element("div.text", { dir: "auto" }, visible(text))]),
    );
    this.tip.hidden = true;
    if (names.length) this.paint();
  }

  token(text, i) {
    const signs = visible(text).replace(/\n/g, "↵\n") || "·";
    return element(text ? "span.token" : "span.token.special", { "data-i": i, tabindex: i ? -1 : 0 }, signs);
  }

  chooser(names) {
    const choose = (name) => {
      this.colouring = name;
      this.paint();
    };
    return element(
      "div.chooser",
      { role: "radiogroup", "aria-label": "color of tokens" },
      ...names.map((name) => element("button", { type: "button", role: "radio", "data-colouring": name, onclick: () => choose(name) }, COLOURINGS[name].title)),
    );
  }

  /** Colours all tokens by the chosen column, over the range of the block, so that neighbours can be compared. */
  paint() {
    const { palette, ends } = COLOURINGS[this.colouring];
    const [low, high] = ends ? ends(reach(this.columns[this.colouring])) : this.expected();
    for (const token of this.text.children) {
      const at = this.row.begin + Number(token.dataset.i);
      const value = this.figure(this.colouring, at);
      const colour = Number.isFinite(value) ? mixed(palette, (value - low) / (high - low)) : null;
      token.style.background = colour ? css(colour) : "";
      token.style.color = colour ? textOn(colour) : "";
      token.classList.toggle("trained", this.columns.mask?.[at] === 1);
    }
    for (const button of this.place.querySelectorAll(".chooser button")) {
      button.setAttribute("aria-checked", button.dataset.colouring === this.colouring);
    }
    this.explain(palette, low, high);
  }

  /** A figure of a token. No critic learns the value of a token that the policy does not choose, so it has none. */
  figure(name, at) {
    return name === "value" && this.columns.mask?.[at] === 0 ? NaN : this.columns[name][at];
  }

  /** One range for values and returns, which speak of the same quantity. */
  expected() {
    const values = Array.from(this.columns.value, (_, at) => this.figure("value", at));
    const both = [...values, ...(this.columns.return ?? [])].filter(Number.isFinite);
    const [low, high] = both.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [0, 0]);
    return [low, high > low ? high : low + 1];
  }

  explain(palette, low, high) {
    const { title, about } = COLOURINGS[this.colouring];
    const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => css(mixed(palette, share))).join(", ");
    const ramp = element("span.ramp");
    ramp.style.background = `linear-gradient(to right, ${stops})`;
    const whitened = this.colouring === "advantage" && this.isWhitened ? ", whitened over the step" : "";
    const scale = this.colouring === "mask" ? [] : [element("span.ends", {}, shown(low)), ramp, element("span.ends", {}, shown(high))];
    this.legend.replaceChildren(...scale, element("span", {}, `${title}: ${about}${whitened}. Underlined: trained on.`));
  }

  point(target) {
    const token = target.closest?.(".token");
    if (!token) return;
    const i = Number(token.dataset.i);
    const at = this.row.begin + i;
    const numbers = Object.keys(COLOURINGS).filter((name) => name in this.columns);
    const rows = numbers.map((name) => [COLOURINGS[name].title, shown(this.figure(name, at))]);
    const { logprob, gap } = this.columns;
    if (logprob) rows.splice(1, 0, ["probability", shown(Math.exp(logprob[at]))]);
    if (logprob && gap) rows.push(["log-probability in sampling", shown(logprob[at] - gap[at])]);
    this.tip.replaceChildren(
      element("strong", {}, JSON.stringify(this.row.texts[i])),
      element("small", {}, `token ${i + 1} of ${this.row.texts.length}`),
      element("dl", {}, ...rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])),
    );
    this.tip.hidden = false;
    const box = token.getBoundingClientRect();
    const below = box.bottom + 6 + this.tip.offsetHeight < window.innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - this.tip.offsetWidth - 8))}px`;
    this.tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - this.tip.offsetHeight - 6)}px`;
  }

  key(event) {
    const token = event.target.closest(".token");
    const next = { ArrowRight: token?.nextElementSibling, ArrowLeft: token?.previousElementSibling }[event.key];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
