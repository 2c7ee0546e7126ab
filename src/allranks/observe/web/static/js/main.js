// Which view is shown, by the address; the theme; the keys.
import { fill, h, svg, typing } from "./dom.js";
import { problem } from "./parts.js";
import { runsView } from "./views/runs.js";
import { runView } from "./views/run.js";
import { compareView } from "./views/compare.js";

const root = document.getElementById("view");
const help = document.getElementById("help");
let view = null, came = "", list = "#/"; // the view, the run that it shows, the list as it was left

function read() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(search) };
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function show() {
  const route = read();
  const [name, id = "", tab = ""] = route.parts;
  if (view?.accepts?.(name, id)) return view.go(tab, route.query);
  list = view?.address?.() || list;
  view?.destroy();
  window.scrollTo(0, 0);
  if (view) root.focus({ preventScroll: true }); // or a reader would still stand in the view that is gone
  try {
    if (name === "run") view = runView(root, id, tab, route.query);
    else if (name === "compare") view = compareView(root, route.query);
    else view = runsView(root, route.query, came);
  } catch (error) {
    view = { destroy() {} };
    fill(root, problem(error));
    throw error;
  }
  came = name === "run" ? id : "";
  crumbs(name, id);
}

function crumbs(name, id) {
  const here = name === "run" ? id : name === "compare" ? "Compare" : "";
  document.title = here ? `${here} · allranks` : "allranks";
  const sep = () => h("span", { class: "sep", "aria-hidden": "true" }, "/");
  fill(
    document.getElementById("crumbs"),
    here ? [sep(), h("a", { href: list }, "Runs"), sep(), h("span", { "aria-current": "page" }, here)] : [],
  );
}

const WORDS = { auto: "as the system", light: "light", dark: "dark" };
const DRAWN = {
  auto: [["circle", { cx: 12, cy: 12, r: 8 }], ["path", { d: "M12 4a8 8 0 0 1 0 16z", fill: "currentColor" }]],
  light: [
    ["circle", { cx: 12, cy: 12, r: 4 }],
    ["path", { d: "M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2" }],
  ],
  dark: [["path", { d: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z" }]],
};

function themeButton() {
  const now = document.documentElement.dataset.chosen;
  const button = document.getElementById("theme");
  button.setAttribute("aria-label", `Colours: ${WORDS[now]}. Change`);
  button.title = `Colours: ${WORDS[now]} (t)`;
  fill(
    button,
    svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, DRAWN[now].map(([tag, props]) => svg(tag, props))),
  );
}

// From the system's to the other one, so that the first press shows, then to this one, then back.
function nextTheme() {
  const { chosen } = document.documentElement.dataset;
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = system === "dark" ? "light" : "dark";
  window.allranksTheme({ auto: other, [other]: system, [system]: "auto" }[chosen]);
  themeButton();
}

function back() {
  if (document.activeElement?.matches("input, select, textarea")) return document.activeElement.blur();
  if (read().parts.length) location.hash = list;
}

const KEYS = { "?": () => help.showModal(), t: nextTheme, Escape: back };

document.addEventListener("keydown", (event) => {
  if (help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing(event) && event.key !== "Escape") return;
  if (view?.key?.(event)) return event.preventDefault();
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  root.focus();
});
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help-button").addEventListener("click", () => help.showModal());
window.addEventListener("hashchange", show);
themeButton();
show();
