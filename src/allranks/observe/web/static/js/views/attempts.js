// The lives of a run: how each ended, what it kept, and which time moved the model forward.
import { fill, h, refill } from "../dom.js";
import { count, moment, percent, span } from "../format.js";
import { badge, card, table } from "../parts.js";

export function attemptsTab(root, { look }) {
  function show(now) {
    if (!now) return fill(root, h("div", { class: "empty" }, "Reading …"));
    if (!now.attempts.length) return fill(root, h("div", { class: "empty" }, "Nothing was started yet."));
    refill(root, h("div", { class: "stack" }, timeCard(now), tableCard(now)));
  }
  show(look);
  return { update: (now, changed) => changed && show(now) };
}

function timeCard(look) {
  const whole = look.attempts.reduce((sum, one) => sum + one.seconds, 0);
  const useful = look.attempts.reduce((sum, one) => sum + one.useful_seconds, 0);
  if (!whole) return null;
  const words = `${percent(useful / whole)}: ${span(useful)} of ${span(whole)} moved the model forward`;
  const lives = look.attempts.map((one) => life(one, whole));
  return card("Goodput", h("span", { class: "note" }, words),
    h("div", { class: "lives", role: "img", "aria-label": `Goodput ${words}` }, lives),
    h("p", { class: "note life-words" },
      h("span", {}, h("i", { class: "swatch", "--tint": "var(--good)" }), "moved the model forward"),
      h("span", {}, h("i", { class: "swatch lost" }), "start, lost steps, end")));
}

function life(one, whole) {
  const part = (share) => `${(100 * share).toFixed(2)}%`;
  const title = `${attemptName(one)}: ${span(one.seconds)}, useful ${span(one.useful_seconds)}`;
  return h("div", { class: "life", "--share": part(one.seconds / whole), title },
    h("i", { "--share": part(one.seconds ? one.useful_seconds / one.seconds : 0) }));
}

function tableCard(look) {
  const array = look.attempts.some((one) => one.array_task);
  const heads = [["Attempt"], ...(array ? [["Task"]] : []), ["Outcome"], ["Began"], ["Time", "number"],
    ["Steps", "number"], ["Kept", "number"], ["Useful", "number"], ["Why", "why"]];
  const rows = [...look.attempts].reverse().map((one) => [
    String(one.attempt),
    ...(array ? [one.array_task] : []),
    badge(one.outcome),
    moment(Date.parse(one.start) / 1000),
    span(one.seconds),
    steps(one),
    count(one.kept_step),
    one.seconds ? percent(one.useful_seconds / one.seconds) : "–",
    one.reason || one.next || "",
  ]);
  return card("Attempts", null, table(heads, rows));
}

export function attemptName(one) {
  return `Attempt ${one.attempt}${one.array_task ? `, task ${one.array_task}` : ""}`;
}

function steps(one) {
  if (one.last_step === null) return "–";
  return `${count(one.first_step)} – ${count(one.last_step)}`;
}
