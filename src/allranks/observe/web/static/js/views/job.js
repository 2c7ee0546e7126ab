// What was asked for, and with what it ran.
import { fill, h } from "../dom.js";
import { card, problem, table } from "../parts.js";

export function jobTab(root, { ask }) {
  fill(root, h("div", { class: "empty" }, "Reading …"));
  const column = (cards) => h("div", { class: "stack" }, cards);
  ask("/job")
    .then(({ data }) => fill(root, h("div", { class: "columns" }, column(left(data)), column(right(data)))))
    .catch((error) => fill(root, problem(error)));
  return {};
}

function left(data) {
  const facts = [
    ["Command", data.command.join(" ")],
    ["Working folder", data.cwd],
    ["Run folder", data.folder],
    ["Launcher", data.launcher],
    ["Site", data.site],
    ["allranks", data.allranks],
    ["Commit", [data.code.commit, data.code.dirty ? "with changes" : ""].filter(Boolean).join(" ")],
  ].filter(([, value]) => value);
  const values = data.values.map((one) => [one.name, h("code", {}, one.value), one.origin]);
  return [
    card("Job", null, h("dl", { class: "facts" },
      facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, value)]))),
    values.length ? card("Asked for", null, table([["Name"], ["Value"], ["From"]], values)) : null,
    pairs("Training", data.training),
  ];
}

function right(data) {
  const { packages, ...python } = data.versions;
  return [
    data.script ? card("job.sh", copy(data.script), h("pre", { class: "text", tabindex: 0 }, data.script)) : null,
    pairs("Versions", { ...Object.fromEntries(Object.entries(python).filter(([, value]) => value)), ...packages }),
    pairs("Environment of rank 0", data.environment, "Secrets are left out."),
  ];
}

function pairs(title, values, note = "") {
  const entries = Object.entries(values || {});
  if (!entries.length) return null;
  const search = h("input", {
    class: "field small",
    type: "search",
    placeholder: "Filter",
    "aria-label": `Filter ${title}`,
    oninput: show,
  });
  const body = h("div", { class: "tall" });
  function show() {
    const wanted = entries.filter((pair) => pair.join(" ").toLowerCase().includes(search.value.toLowerCase()));
    const text = (value) => typeof value === "object" ? JSON.stringify(value) : value;
    fill(body, table([["Name"], ["Value"]], wanted.map(([name, value]) => [name, h("code", {}, text(value))])));
  }
  show();
  return card(title, entries.length > 12 ? search : null, body, note ? h("p", { class: "note" }, note) : null);
}

function copy(text) {
  const button = h("button", { class: "button small", type: "button", async onclick() {
    await navigator.clipboard.writeText(text);
    fill(button, "Copied");
    setTimeout(() => fill(button, "Copy"), 1500);
  } }, "Copy");
  return navigator.clipboard ? button : null;
}
