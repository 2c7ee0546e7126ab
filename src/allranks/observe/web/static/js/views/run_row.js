// A run in one row of the list.
import { address } from "../address.js";
import { fill, h, setText } from "../dom.js";
import { count, moment, percent, plural, span, value } from "../format.js";
import { badge, bar, spark, stateKind } from "../parts.js";

const FACTS = ["Nodes", "Time", "Attempts", "Goodput"];

export function runRow(run, chosen, choose) {
  const there = address(run.id);
  const tick = h("input", {
    type: "checkbox",
    "aria-label": `Choose ${run.id} for a comparison`,
    checked: chosen.has(run.id),
    onchange: () => choose(run.id, tick.checked),
  });
  const state = h("div", { class: "run-state" });
  const name = h("a", { class: "run-name", href: there });
  const about = h("div", { class: "run-about" });
  const why = h("div", { class: "run-why" });
  const progress = h("div", { class: "run-progress" });
  const loss = h("div", { class: "run-loss" });
  const facts = Object.fromEntries(FACTS.map((name) => [name.toLowerCase(), fact(name)]));
  const element = h(
    "div",
    { class: "run", role: "listitem" },
    h("div", { class: "run-tick" }, tick),
    state,
    h("div", { class: "run-title" }, name, about, why),
    progress,
    loss,
    Object.values(facts).map((each) => each.element),
  );
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, input") && !String(getSelection())) location.hash = there;
  });
  let before = "";
  function update(now) {
    const text = JSON.stringify(now);
    if (text === before) return;
    before = text;
    setText(name, now.name);
    fill(state, badge(now.state, now.exit_code));
    const job = now.job_id ? `job ${now.job_id}` : now.scheduler === "slurm" ? "" : "here";
    const tasks = now.tasks ? plural(now.tasks, "task") : "";
    setText(about, [job, tasks, now.id].filter(Boolean).join(" · "));
    setText(why, reason(now));
    why.classList.toggle("bad", stateKind(now.state) === "bad");
    why.hidden = !why.textContent;
    fill(progress, progressCell(now));
    fill(loss, lossCell(now));
    facts.nodes.set(now.nodes || "–", now.nodes);
    facts.time.set(now.elapsed ? span(now.elapsed) : "–");
    facts.attempts.set(now.attempts || "–");
    facts.goodput.set(now.goodput === null ? "–" : percent(now.goodput));
  }
  return { element, update };
}

// A value of a row; the head of its column is far away for those who hear it.
function fact(name) {
  const value = h("span");
  const heard = h("span", { class: "visually-hidden" }, `${name}: `);
  const element = h("div", { class: `run-fact run-${name.toLowerCase()}` }, heard, value);
  return { element, set(text, title = "") { setText(value, text); element.title = title; } };
}

export function reason(run) {
  const starts = run.expected_start ? `starts about ${moment(run.expected_start)}` : "";
  return [run.why, starts].filter(Boolean).join("; ");
}

function progressCell(run) {
  if (run.step === null) return h("span", { class: "note" }, "–");
  const share = run.total_steps ? Math.min(run.step / run.total_steps, 1) : null;
  const steps = run.total_steps ? `${count(run.step)} / ${count(run.total_steps)}` : `step ${count(run.step)}`;
  const left = run.eta !== null ? `${span(run.eta)} left` : share !== null ? percent(share) : "";
  return [share === null ? null : bar(share, stateKind(run.state) === "live" ? "" : stateKind(run.state)),
    h("div", { class: "under" }, h("span", {}, steps), h("span", { class: "note" }, left))];
}

function lossCell(run) {
  if (!run.curve?.length && !run.diverged) return h("span", { class: "note" }, "–");
  const last = run.diverged ? "NaN" : value(run.curve.at(-1));
  return [
    spark(run.curve, `Loss from ${value(run.curve[0])} to ${last}`),
    h("span", { class: `last${run.diverged ? " late" : ""}` }, last),
  ];
}
