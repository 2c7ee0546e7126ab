// What lint, check and the run itself have to say.
import { fill, h, refill } from "../dom.js";
import { moment, plural } from "../format.js";
import { problem } from "../parts.js";

const KINDS = { error: "bad", warning: "warn", note: "" };
const ORDER = ["error", "warning", "note"];
const NOTHING = "Nothing was found: neither in the job script nor in the run.";
const SOURCES = { lint: "the job script", check: "the cluster's check", run: "the run" };

export function findingsTab(root, { ask, link, look }) {
  const failure = h("div"), list = h("div", { class: "stack" });
  fill(root, h("div", { class: "stack" }, failure, list));
  fill(list, h("div", { class: "empty" }, "Reading …"));

  async function load() {
    try {
      const { data } = await ask("/diagnostics");
      show(data.diagnostics);
    } catch (error) {
      if (error.name !== "AbortError") fill(list, problem(error));
    }
  }

  function show(diagnostics) {
    // The first failure stands above already, with its traceback.
    const first = look?.error ? `Rank ${look.error.rank} failed first` : null;
    const others = diagnostics.filter((one) => !(first && one.title.startsWith(first)));
    if (!others.length) return fill(list, first ? null : h("div", { class: "empty" }, NOTHING));
    const kinds = ORDER.map((severity) => others.filter((one) => one.severity === severity));
    const counts = kinds.map((some, i) => some.length && plural(some.length, ORDER[i])).filter(Boolean).join(", ");
    fill(list, h("p", { class: "note" }, counts), kinds.flat().map(remark));
  }

  function showFailure(now) {
    const error = now?.error;
    if (!error) return fill(failure);
    refill(failure, h("section", { class: "notice bad" },
      h("h2", {}, `Rank ${error.rank} failed first${error.host ? ` on ${error.host}` : ""}: ${error.how}`),
      h("p", { class: "note" }, [moment(Date.parse(error.time) / 1000), error.command].filter(Boolean).join(" · ")),
      error.traceback ? h("pre", { class: "text", tabindex: 0 }, error.traceback) : null,
      h("p", {}, h("a", { href: link("logs", { errors: 1 }) }, "Errors in the logs"))));
  }

  showFailure(look);
  if (look) load();
  return { async update(now, changed) {
      const before = look;
      look = now;
      if (changed) showFailure(now);
      if (!before || before.error?.time !== now.error?.time) await load();
    } };
}

function remark(one) {
  const where = [SOURCES[one.source] || one.source, one.rule, one.line ? `line ${one.line}` : ""];
  return h("section", { class: `notice ${KINDS[one.severity] || ""}` },
    h("h2", {}, h("span", { class: "severity" }, one.severity), one.title),
    h("p", { class: "said" }, one.message),
    one.help ? h("p", { class: "said" }, h("code", {}, one.help)) : null,
    h("p", { class: "note" }, where.filter(Boolean).join(" · ")));
}
