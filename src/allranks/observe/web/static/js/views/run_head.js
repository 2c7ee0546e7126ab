// The head of a run: its state, how far it is, its newest numbers.
import { address, reportAddress } from "../address.js";
import { h } from "../dom.js";
import { count, metricName, metricValue, moment, percent, plural, span, stepTime } from "../format.js";
import { badge, bar, stateKind } from "../parts.js";

const MOST = 20; // failed tasks by name
const TILES = ["train_loss", "val_loss", "samples_per_second", "tokens_per_second", "mfu", "lr", "grad_norm"];

export function headOf(look) {
  const { progress } = look;
  return [
    h(
      "div",
      { class: "run-line" },
      h("h1", {}, look.status.name),
      badge(look.state, look.status.exit_code),
      h("span", { class: "note" }, where(look)),
      h("a", { class: "button small report", href: reportAddress(look.id, look.task), target: "_blank" }, "Report"),
    ),
    whyOf(look),
    failedOf(look),
    progress.step === null || progress.step === undefined ? null : progressOf(look),
    h(
      "dl",
      { class: "tiles" },
      tilesOf(look).map(([title, value, hint, kind]) => h(
        "div",
        { title: hint },
        h("dt", {}, title),
        h("dd", { class: kind }, value),
      )),
    ),
    straggling(look),
  ];
}

function whyOf({ status, state }) {
  const starts = status.expected_start ? `starts about ${at(status.expected_start)}` : "";
  const text = [status.why, starts].filter(Boolean).join("; ");
  return text ? h("p", { class: `run-reason ${stateKind(state)}` }, text) : null;
}

// Of a job array, whichever task is looked at.
function failedOf({ id, failed_tasks: failed }) {
  if (!failed.length) return null;
  const links = failed.slice(0, MOST).map((task) => [" ", h("a", { href: address(id, "attempts", `task=${task}`) }, task)]);
  const more = failed.length > MOST ? ` and ${failed.length - MOST} more` : "";
  return h("p", { class: "run-reason bad" }, `${plural(failed.length, "task")} of the array did not end well:`, links, more);
}

function at(stamp) {
  return moment(Date.parse(stamp) / 1000);
}

function where(look) {
  const { status } = look;
  const job = status.job_id ? `job ${status.job_id}` : status.scheduler === "local" ? "on this machine" : status.scheduler === "allocation" ? "in an allocation" : "";
  const lives = look.attempts.filter((one) => !look.task || one.array_task === look.task).length;
  const attempt = lives > 1 ? `attempt ${lives}` : "";
  return [
    job,
    look.task ? `task ${look.task}` : "",
    nodesOf(look),
    attempt,
    look.ended && status.end ? `ended ${at(status.end)}` : status.start ? `since ${at(status.start)}` : "",
  ].filter(Boolean).join(" · ");
}

function nodesOf(look) {
  const ranks = look.ranks.length ? plural(look.ranks.length, "rank") : "";
  const nodes = look.nodes.length > 1 ? `${plural(look.nodes.length, "node")}` : look.nodes[0]?.host || "";
  return [nodes, ranks].filter(Boolean).join(", ");
}

function progressOf(look) {
  const { progress } = look, share = progress.share;
  const live = stateKind(look.state) === "live";
  const steps = `Step ${count(progress.step)}${progress.total_steps ? ` of ${count(progress.total_steps)}` : ""}`;
  const epoch = progress.epoch ? `epoch ${progress.epoch}${progress.epochs ? ` of ${progress.epochs}` : ""}` : "";
  const end = look.time + progress.eta_seconds;
  const eta = live && progress.eta_seconds !== null ? `${span(progress.eta_seconds)} left, until ${moment(end)}` : "";
  const limit = live && progress.deadline ? `time limit at ${moment(progress.deadline)}` : "";
  const late = limit && progress.eta_seconds !== null && end > progress.deadline;
  return h("div", { class: "run-progress" }, share === null ? null : bar(share, live ? "" : stateKind(look.state)),
    h("div", { class: "under" }, h("span", {}, [steps, epoch].filter(Boolean).join(", ")),
      h(
        "span",
        { class: "note" },
        eta,
        eta && limit ? " · " : "",
        limit ? h("span", { class: late ? "late" : null }, limit) : "",
        !live && share !== null ? percent(share) : "",
      )));
}

function tilesOf(look) {
  const tiles = TILES.filter((name) => name in look.values).map((name) => look.nonfinite.includes(name)
    ? [metricName(name), metricValue(name, NaN), "NaN or infinite", "late"]
    : [metricName(name), metricValue(name, look.values[name])]);
  const step = look.values.step_seconds;
  if (step !== undefined) tiles.push(["time per step", stepTime(step)]);
  const used = look.ranks.map((rank) => rank.use).filter((use) => use !== null && use !== undefined);
  if (used.length) tiles.push([
    "GPU use",
    percent(used.reduce((a, b) => a + b, 0) / used.length),
    "The mean over all ranks in the last sample",
  ]);
  if (look.goodput?.share) tiles.push([
    "goodput",
    percent(look.goodput.share),
    "Time that moved the model forward over time allocated",
  ]);
  if (look.progress.saved_step) tiles.push([
    "last checkpoint",
    count(look.progress.saved_step),
    "The step of the newest checkpoint",
  ]);
  return tiles;
}

function straggling(look) {
  const slow = look.ranks.filter((rank) => rank.straggler);
  if (!slow.length) return null;
  const place = (rank) => rank.host ? ` on ${rank.host}` : "";
  const name = (rank) => `rank ${rank.rank}${place(rank)} (${percent(rank.behind)} behind)`;
  const named = slow.slice(0, 4).map(name).join(", ");
  const more = slow.length > 4 ? ` and ${slow.length - 4} more` : "";
  return h("p", { class: "notice warn" }, `The others ${look.ended ? "waited" : "wait"} for ${named}${more}.`);
}
