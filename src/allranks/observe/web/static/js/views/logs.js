// The logs of all ranks, merged by time. Only what is seen is in the page, only what was asked for is read.
import { Refused } from "../api.js";
import { fill, h, setText } from "../dom.js";
import { percent, plural } from "../format.js";
import { check, select } from "../parts.js";
import { attemptName } from "./attempts.js";
import { logLine, writer } from "./log_line.js";

const HEIGHT = 20, PAGE = 500, AROUND = 20, MOST = 100_000;
const FOOT = 50; // pixels between the card and the lower end of the page
const FIELDS = ["q", "regex", "case", "ranks", "attempt", "stream", "errors"];

export function logsTab(root, { ask, link, query, look }) {
  let lines = [], before = null, next = null, more = false; // what is loaded, and where to go on
  let left = PAGE, over = false; // lines still wanted of a search; whether the run's last ones were asked for
  let marked = "", stick = true; // the line that is linked to; whether the end is followed
  let wide = 2; // characters of the widest name of a writer
  let busy = null, turn = 0; // the question on its way; which search it belongs to
  const asked = {}, controls = {}; // what is chosen, and where: name → how to show a value
  read(query);

  const search = field("q", "search", "Search all ranks", "grow");
  const ranks = field("ranks", "text", "Ranks: 0, 4-7", "narrow");
  const attempts = h("span");
  const streams = select(
    "Stream",
    [["", "stdout and stderr"], ["o", "stdout"], ["e", "stderr"], ["slurm", "Slurm's output"]],
    asked.stream,
    (value) => choose("stream", value),
    false,
  );
  controls.stream = (value) => { streams.value = value; };
  const status = h("span", { class: "note", role: "status", "aria-live": "polite" });
  const following = check("Follow", stick, (on) => { stick = on; if (on) { marked = ""; restart(); } });
  const spacer = h("div", { class: "log-space" });
  const box = h(
    "div",
    { class: "log", tabindex: 0, role: "log", "aria-label": "Log lines", "aria-live": "off", onscroll: scrolled },
    spacer,
  );
  const moreButton = h(
    "button",
    { class: "button", type: "button", hidden: true, onclick: () => goOn() },
    "More",
  );
  fill(root, h("section", { class: "card logs" },
    h(
      "div",
      { class: "toolbar" },
      search,
      flag("regex", "Regex"),
      flag("case", "Case"),
      ranks,
      attempts,
      streams,
      flag("errors", "Errors only"),
      following,
    ),
    box, h("footer", { class: "toolbar" }, status, h("span", { class: "grow" }), moreButton)));
  const watcher = new ResizeObserver(() => draw());
  watcher.observe(box);

  function field(name, type, placeholder, kind) {
    let timer = 0;
    const typed = () => {
      clearTimeout(timer);
      timer = setTimeout(() => choose(name, input.value.trim()), 250);
    };
    const props = { class: `field ${kind}`, type, placeholder, "aria-label": placeholder, value: asked[name] };
    const input = h("input", { ...props, oninput: typed });
    controls[name] = (value) => { clearTimeout(timer); input.value = value; };
    return input;
  }

  function flag(name, label) {
    const made = check(label, asked[name] === "1", (on) => choose(name, on ? "1" : ""));
    controls[name] = (value) => { made.input.checked = value === "1"; };
    return made;
  }

  function choose(name, value) {
    asked[name] = value;
    marked = "";
    stick = true;
    restart();
  }

  function read(from) {
    for (const name of FIELDS) asked[name] = from.get(name) || "";
    marked = from.get("at") || "";
    stick = !marked;
  }

  const chosen = () => Boolean(asked.q || asked.errors || ["o", "e"].includes(asked.stream));

  function restart() {
    busy?.abort();
    busy = null;
    turn += 1;
    lines = []; before = next = null; more = over = false; left = PAGE;
    const now = worth({ ...asked, at: marked });
    history.replaceState(null, "", link("logs", now));
    following.input.checked = stick;
    page(marked ? "at" : "");
  }

  function goOn() {
    left = PAGE;
    page("after");
  }

  async function page(way) {
    if (busy) return;
    const mine = turn, control = new AbortController();
    busy = control;
    if (!lines.length) setText(status, chosen() ? "Searching …" : "Reading …");
    try {
      const place = { before, after: next, at: marked }[way];
      const { data } = await ask(
        "/logs",
        { ...asked, limit: PAGE, ...(place ? { [way]: place } : {}) },
        control.signal,
      );
      if (mine !== turn) return;
      add(data, way);
    } catch (error) {
      if (error.name !== "AbortError") setText(status, error.message);
      if (!(error instanceof Refused)) throw error;
    } finally {
      if (busy === control) busy = null;
    }
  }

  function add(data, way) {
    const height = lines.length;
    lines = way === "before" ? [...data.lines, ...lines] : [...lines, ...data.lines];
    if (way !== "after") before = data.before;
    if (way === "at") marked = data.at;
    if (way !== "before") { next = data.next; more = data.more; left -= data.lines.length; }
    if (lines.length > MOST && way !== "before") { lines = lines.slice(-MOST); before = null; }
    draw();
    if (way === "before") box.scrollTop += (lines.length - height) * HEIGHT;
    else if (way === "at") centre();
    else if (way === "" && !chosen()) box.scrollTop = box.scrollHeight;
    else if (stick && way === "after" && data.lines.length && !chosen()) box.scrollTop = box.scrollHeight;
    draw();
    say(data);
    // A search answers in small turns: go on until a page is full or the logs end.
    if (more && chosen() && left > 0 && way !== "before") setTimeout(() => page("after"), 0);
  }

  function say(data) {
    const found = chosen() ? plural(lines.length, "line") + " found" : plural(lines.length, "line") + " loaded";
    const part = more && data.share !== undefined ? `, searched ${percent(data.share)}` : "";
    setText(
      status,
      lines.length || more ? `${found}${part}` : chosen() ? "Nothing like that in the logs." : "No lines yet.",
    );
    moreButton.hidden = !(more && (left <= 0 || !chosen()));
    document.body.dataset.lines = String(lines.length);
  }

  function centre() {
    const place = lines.findIndex((line) => line.place === marked);
    if (place >= 0) box.scrollTop = Math.max(place * HEIGHT - box.clientHeight / 2, 0);
  }

  function scrolled() {
    draw();
    const end = box.scrollHeight - box.scrollTop - box.clientHeight < 2 * HEIGHT;
    if (!chosen() && !marked && stick !== end) { stick = end; following.input.checked = end; }
    if (box.scrollTop < 20 * HEIGHT && before && !chosen()) page("before");
    if (end && more) goOn();
  }

  function draw() {
    spacer.style.height = `${lines.length * HEIGHT}px`;
    const first = Math.max(Math.floor(box.scrollTop / HEIGHT) - AROUND, 0);
    const last = Math.min(first + Math.ceil(box.clientHeight / HEIGHT) + 2 * AROUND, lines.length);
    const some = lines.slice(first, last), many = look && look.attempts.length > 1;
    const widest = Math.max(wide, ...some.map((line) => writer(line, many).length));
    if (widest > wide) box.style.setProperty("--who", `${wide = widest}ch`);
    fill(spacer, some.map((line, i) => shown(line, first + i, many)));
  }

  // Up to the lower end of the window: then only the lines scroll, not the page around them.
  function fit() {
    const below = root.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom;
    const above = box.getBoundingClientRect().top + window.scrollY;
    box.style.height = `${Math.max(window.innerHeight - above - below - FOOT, 320)}px`;
  }

  function shown(line, place, many) {
    // A link keeps the files, not the search: it is about what stands around the line.
    const files = { ranks: asked.ranks, attempt: asked.attempt, stream: asked.stream === "slurm" ? "slurm" : "" };
    const element = logLine(line, link("logs", worth({ ...files, at: line.place })), asked, many);
    element.classList.toggle("marked", line.place === marked);
    element.style.top = `${place * HEIGHT}px`;
    return element;
  }

  function showAttempts(now) {
    if (!now || attempts.dataset.count === String(now.attempts.length)) return;
    attempts.dataset.count = String(now.attempts.length);
    const each = now.attempts.map((one) => [String(one.attempt), attemptName(one)]);
    const options = [["", "All attempts"], ...each];
    const box = select("Attempt", options, asked.attempt, (value) => choose("attempt", value), false);
    controls.attempt = (value) => { box.value = value; };
    fill(attempts, each.length < 2 ? null : box);
  }

  showAttempts(look);
  window.addEventListener("resize", fit);
  restart();
  fit();
  return {
    async update(now) {
      look = now;
      showAttempts(now);
      fit();
      if (!stick || busy || more || over) return;
      next ? await page("after") : restart();
      over = now.ended; // what was written up to the end is here now
    },
    go(now) {
      read(now);
      for (const [name, show] of Object.entries(controls)) show(asked[name]);
      restart();
    },
    key(event) { if (event.key === "/") { search.focus(); search.select(); return true; } return false; },
    destroy() { busy?.abort(); turn += 1; watcher.disconnect(); window.removeEventListener("resize", fit); },
  };
}

function worth(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
}
