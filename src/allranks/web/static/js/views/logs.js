// The logs of all ranks, merged by time. Only what is seen is in the page, only what was asked for is read.
import { Refused } from "../api.js";
import { pieces } from "../ansi.js";
import { fill, h, setText } from "../dom.js";
import { logTime, number, percent, plural } from "../format.js";
import { check, select } from "../parts.js";
import { attemptName } from "./attempts.js";

const HEIGHT = 20, PAGE = 500, AROUND = 20, MOST = 100_000;
const FIELDS = ["q", "regex", "case", "ranks", "attempt", "stream", "errors"];

export function logsTab(root, { ask, link, query, look }) {
  let lines = [], before = null, next = null, more = false; // what is loaded, and where to go on
  let left = PAGE, over = false; // lines still wanted of a search; whether the run's last ones were asked for
  let marked = query.get("at") || "", stick = !marked; // the line that is linked to; whether the end is followed
  let busy = null, turn = 0; // the question on its way; which search it belongs to
  const asked = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) || ""]));

  const search = field("q", "search", "Search all ranks", "grow");
  const ranks = field("ranks", "text", "Ranks: 0, 4-7", "narrow");
  const attempts = h("span");
  const streams = select(
    "Stream",
    [["", "stdout and stderr"], ["o", "stdout"], ["e", "stderr"], ["slurm", "Slurm's output"]],
    asked.stream,
    (value) => { asked.stream = value; restart(); },
    false,
  );
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
      timer = setTimeout(() => { asked[name] = input.value.trim(); restart(); }, 250);
    };
    const props = { class: `field ${kind}`, type, placeholder, "aria-label": placeholder, value: asked[name] };
    const input = h("input", { ...props, oninput: typed });
    return input;
  }

  function flag(name, label) {
    return check(label, asked[name] === "1", (on) => { asked[name] = on ? "1" : ""; restart(); });
  }

  const chosen = () => Boolean(asked.q || asked.errors || ["o", "e"].includes(asked.stream));

  function restart() {
    busy?.abort();
    busy = null;
    turn += 1;
    lines = []; before = next = null; more = over = false; left = PAGE;
    const now = Object.fromEntries(Object.entries({ ...asked, at: marked }).filter(([, value]) => value));
    history.replaceState(null, "", link("logs", now));
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
    const many = look && look.attempts.length > 1;
    fill(spacer, lines.slice(first, last).map((line, i) => shown(line, first + i, many)));
  }

  function shown(line, place, many) {
    const kind = { e: "err", f: "fail" }[line.stream] || "";
    const at = link("logs", { at: line.place });
    const said = pieces(line.text).map((piece) => h("span", { class: piece.style || null }, marks(piece.text)));
    const element = h("div", { class: `log-line ${kind}${line.place === marked ? " marked" : ""}` },
      h("a", { class: "when", href: at, title: line.time, tabindex: -1 }, logTime(line.time) || "·"),
      writer(line, many),
      h("span", { class: "said" }, said, line.cut ? h("i", {}, ` … ${number(line.cut)} more characters`) : null));
    element.style.top = `${place * HEIGHT}px`;
    return element;
  }

  function writer(line, many) {
    if (line.rank === null) return h("span", { class: "who", title: "the job script", "--hue": "0" }, "job");
    const task = line.task ? `task ${line.task}, ` : "";
    const title = `rank ${line.rank}, ${task}attempt ${line.attempt}`;
    const props = { class: "who", title, "--hue": String((line.rank * 47) % 360) };
    return h("span", props, line.task || many ? `${line.task || line.attempt}:${line.rank}` : line.rank);
  }

  function marks(text) {
    const pattern = wanted();
    if (!pattern) return text;
    const found = [];
    let last = 0;
    for (const match of text.matchAll(pattern)) {
      if (!match[0]) continue;
      found.push(text.slice(last, match.index), h("mark", {}, match[0]));
      last = match.index + match[0].length;
      if (asked.regex) break; // the server looked no further either: another may take for ever
    }
    return [...found, text.slice(last)];
  }

  function wanted() {
    if (!asked.q) return null;
    try {
      return new RegExp(
        asked.regex ? asked.q : asked.q.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"),
        asked.case ? "g" : "gi",
      );
    } catch { return null; } // a Python expression that JavaScript does not know: found, yet not marked
  }

  function showAttempts(now) {
    if (!now || attempts.dataset.count === String(now.attempts.length)) return;
    attempts.dataset.count = String(now.attempts.length);
    const each = now.attempts.map((one) => [String(one.attempt), attemptName(one)]);
    const choose = (value) => { asked.attempt = value; restart(); };
    const options = [["", "All attempts"], ...each];
    fill(attempts, each.length < 2 ? null : select("Attempt", options, asked.attempt, choose, false));
  }

  showAttempts(look);
  restart();
  return {
    async update(now) {
      look = now;
      showAttempts(now);
      if (!stick || busy || more || over) return;
      next ? await page("after") : restart();
      over = now.ended; // what was written up to the end is here now
    },
    go(now) {
      marked = now.get("at") || "";
      if (marked) {
        stick = following.input.checked = false;
        Object.assign(asked, { q: "", errors: "" });
        search.value = "";
      }
      restart();
    },
    key(event) { if (event.key === "/") { search.focus(); search.select(); return true; } return false; },
    destroy() { busy?.abort(); turn += 1; watcher.disconnect(); },
  };
}
