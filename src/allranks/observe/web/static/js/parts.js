// Small pieces that several views show.
import { h, svg } from "./dom.js";
import { percent } from "./format.js";

const KINDS = Object.fromEntries(Object.entries({
  live: ["running", "completing"],
  good: ["completed", "finished"],
  warn: ["pending", "requeued", "suspended", "interrupted", "preempted", "timed out"],
  bad: ["failed", "timeout", "node failed", "node lost", "out of memory", "killed"],
}).flatMap(([kind, states]) => states.map((state) => [state, kind])));

const WAITING = ["pending", "requeued", "suspended"];

export function stateKind(state) {
  return KINDS[state] || "calm";
}

// Each state is in one group; what has ended neither well nor by a failure is in "other".
export function stateGroup(state) {
  if (WAITING.includes(state)) return "waiting";
  return { live: "running", good: "completed", bad: "failed" }[stateKind(state)] || "other";
}

export function badge(state, exitCode = null) {
  const code = exitCode && stateKind(state) === "bad" ? ` (${exitCode})` : "";
  return h("span", { class: `badge ${stateKind(state)}` }, state + code);
}

export function bar(share, kind = "", label = "Progress") {
  return h("div", {
    class: `bar ${kind}`, role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(share * 100), "aria-valuetext": percent(share),
  }, h("i", { "--share": `${(share * 100).toFixed(2)}%` }));
}

export function spark(values, label) {
  const drawn = svg("svg", {
    class: "spark",
    viewBox: "0 0 100 24",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  if (values.length > 1) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (i) => (100 * i / (values.length - 1)).toFixed(2);
    const y = (value) => (22 - 20 * (value - low) / (high - low || 1)).toFixed(2);
    drawn.append(svg("path", { d: `M${values.map((value, i) => `${x(i)} ${y(value)}`).join("L")}` }));
  }
  return drawn;
}

export function card(title, tools, ...body) {
  const inside = h("div", { class: "body" }, body);
  const element = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), tools), inside);
  return Object.assign(element, { inside });
}

export function segments(label, options, chosen, choose) {
  const buttons = new Map(options.map(([value, text]) => [value, h("button", {
    type: "button", "aria-pressed": String(value === chosen),
    onclick() { set(value); choose(value); },
  }, text)]));
  function set(value) {
    for (const [each, button] of buttons) button.setAttribute("aria-pressed", String(each === value));
  }
  return Object.assign(
    h("div", { class: "segments", role: "group", "aria-label": label }, [...buttons.values()]),
    { set },
  );
}

export function select(label, options, chosen, choose, small = true) {
  const kind = `select${small ? " small" : ""}`;
  const entries = options.map(([value, text]) => h("option", { value }, text));
  const element = h("select", { class: kind, "aria-label": label, onchange: () => choose(element.value) }, entries);
  element.value = chosen;
  return element;
}

export function check(label, checked, change) {
  const input = h("input", { type: "checkbox", checked, onchange: () => change(input.checked) });
  return Object.assign(h("label", { class: "check" }, input, label), { input });
}

// heads: [text, class] of each column; the first cell of a row is its head.
export function table(heads, rows) {
  const head = h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)));
  const cell = (content, i) => h(i ? "td" : "th", { class: heads[i][1], scope: i ? null : "row" }, content);
  const label = heads.map(([text]) => text).filter(Boolean).join(", ");
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, head), h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map(cell))))));
}

export function problem(error) {
  return h("div", { class: "notice bad", role: "alert" }, error.message || String(error));
}
