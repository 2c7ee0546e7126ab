// One line of the logs: when, who, and what it says, with what is searched for marked.
import { pieces } from "../ansi.js";
import { h } from "../dom.js";
import { count, logTime } from "../format.js";

// ``at``: the address of the line; ``asked``: the search; ``many``: there are several attempts.
export function logLine(line, at, asked, many) {
  const kind = { e: "err", f: "fail" }[line.stream] || "";
  const cut = line.cut ? h("i", {}, ` … ${count(line.cut)} more characters`) : null;
  return h("div", { class: `log-line ${kind}` },
    h("a", { class: "when", href: at, title: line.time, tabindex: -1 }, logTime(line.time) || "·"),
    h("span", { class: "who", title: about(line), "--hue": hue(line) }, writer(line, many)),
    h("span", { class: "said" }, marks(pieces(line.text), asked), cut));
}

// Who wrote it: the rank, with its task or attempt where there are several.
export function writer(line, many) {
  if (line.rank === null) return "job";
  return line.task || many ? `${line.task || line.attempt}:${line.rank}` : String(line.rank);
}

function about(line) {
  if (line.rank === null) return "the job script";
  return `rank ${line.rank}, ${line.task ? `task ${line.task}, ` : ""}attempt ${line.attempt}`;
}

function hue(line) {
  return String(((line.rank || 0) * 47) % 360);
}

// What was found may begin in one colour and end in another.
function marks(parts, asked) {
  const found = matches(parts.map((piece) => piece.text).join(""), asked);
  let at = 0;
  return parts.map(({ text, style }) => {
    const begin = at, end = at + text.length;
    at = end;
    const cuts = [begin, ...found.flat().filter((each) => each > begin && each < end), end];
    const bits = cuts.slice(1).map((each, i) => {
      const bit = text.slice(cuts[i] - begin, each - begin);
      return found.some(([first, last]) => cuts[i] >= first && each <= last) ? h("mark", {}, bit) : bit;
    });
    return h("span", { class: style || null }, bits);
  });
}

// Where it begins and ends, each time.
function matches(text, asked) {
  const pattern = wanted(asked), found = [];
  for (const match of pattern ? text.matchAll(pattern) : []) {
    if (!match[0]) continue;
    found.push([match.index, match.index + match[0].length]);
    if (asked.regex) break; // the server looked no further either: another may take for ever
  }
  return found;
}

function wanted(asked) {
  if (!asked.q) return null;
  try {
    return new RegExp(
      asked.regex ? asked.q : asked.q.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"),
      asked.case ? "g" : "gi",
    );
  } catch { return null; } // a Python expression that JavaScript does not know: found, yet not marked
}
