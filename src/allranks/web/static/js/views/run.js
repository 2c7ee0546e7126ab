// One run: its head, always there, and a tab below it.
import { get, follow, Refused } from "../api.js";
import { fill, h, refill } from "../dom.js";
import { metricName, metricValue, moment, number, percent, plural, rough, small } from "../format.js";
import { badge, bar, problem, select, stateKind } from "../parts.js";
import { attemptsTab } from "./attempts.js";
import { findingsTab } from "./findings.js";
import { jobTab } from "./job.js";
import { logsTab } from "./logs.js";
import { overviewTab } from "./overview.js";

const TABS = [["", "Overview", overviewTab], ["logs", "Logs", logsTab], ["attempts", "Attempts", attemptsTab],
  ["findings", "Findings", findingsTab], ["job", "Job", jobTab]];
const TILES = ["train_loss", "val_loss", "samples_per_second", "tokens_per_second", "mfu", "lr", "grad_norm"];

export function runView(root, id, first, query) {
  const base = `/api/runs/${encodeURIComponent(id)}`;
  const head = h(
    "section",
    { class: "card run-head", "aria-label": "The run" },
    h("div", { class: "skeleton", "aria-label": "Reading" }),
  );
  const panel = h("div", { id: "panel", role: "tabpanel", tabindex: -1 });
  const links = TABS.map(([name, title], i) => h(
    "a",
    {
      role: "tab",
      id: `tab-${name}`,
      "aria-controls": "panel",
      href: address(id, name),
      title: `${title} (${i + 1})`,
    },
    title,
  ));
  const tabs = h(
    "nav",
    { class: "tabs", role: "tablist", "aria-label": "Parts of the run", onkeydown: arrows },
    links,
  );
  const trouble = h("div"), tasks = h("div", { class: "tasks" });
  fill(root, trouble, head, tasks, tabs, panel);
  let tab = null, name = null, look = null, poll = null, gone = false;
  let task = ""; // of a job array; without a choice the server's

  const ask = (part = "", params = {}, signal = undefined) => get(base + part, { task, ...params }, signal);
  const link = (to, params = {}) => address(id, to, String(new URLSearchParams({ ...(task && { task }), ...params })));

  go(first, query);
  poll = follow(async () => {
    const answer = await asked();
    if (answer.changed || !look || gone) show(answer.data);
    await tab?.update?.(look, answer.changed);
  });

  // The look at the task that is chosen when the answer comes.
  async function asked() {
    const mine = task;
    try {
      const answer = await ask();
      return mine === task ? answer : asked();
    } catch (error) {
      if (error instanceof Refused) lost(error);
      throw error;
    }
  }

  function show(now) {
    look = now;
    gone = head.hidden = tabs.hidden = panel.hidden = false;
    fill(trouble);
    refill(head, headOf(look));
    alarm(links[3], look);
    showTasks();
  }

  function showTasks() {
    if (tasks.dataset.now === [task, ...look.tasks].join()) return;
    tasks.dataset.now = [task, ...look.tasks].join();
    const options = [["", "Any task"], ...look.tasks.map((each) => [each, `Task ${each}`])];
    const choose = (value) => { location.hash = address(id, name, value ? `task=${value}` : ""); };
    fill(tasks, look.tasks.length > 1 ? select("Task of the array", options, task, choose, false) : null);
  }

  // The run is not there (any more): what was shown of it stays, yet not as if it went on.
  function lost(error) {
    gone = true;
    fill(trouble, problem(error));
    if (look) refill(head, headOf({ ...look, state: "gone", ended: true }));
    else head.hidden = tabs.hidden = panel.hidden = true;
  }

  function go(next, now) {
    const place = Math.max(TABS.findIndex(([each]) => each === next), 0);
    const same = task === (now.get("task") || "");
    if (same && name === TABS[place][0] && tab?.go) return tab.go(now);
    task = now.get("task") || "";
    look = same ? look : null;
    tab?.destroy?.();
    name = TABS[place][0];
    name ? head.setAttribute("data-tab", name) : head.removeAttribute("data-tab");
    links.forEach((each, i) => {
      each.setAttribute("aria-selected", String(i === place));
      each.setAttribute("href", link(TABS[i][0]));
      each.tabIndex = i === place ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", links[place].id);
    fill(panel);
    tab = TABS[place][2](panel, { id, ask, link, query: now, look });
    poll?.now();
  }

  function arrows(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = links[(links.indexOf(document.activeElement) + step + links.length) % links.length];
    next.focus();
    location.hash = next.getAttribute("href");
  }

  function key(event) {
    if (tab?.key?.(event)) return true;
    if (event.key >= "1" && event.key <= "5") {
      location.hash = link(TABS[Number(event.key) - 1][0]);
      return true;
    }
    return false;
  }

  return {
    accepts: (kind, wanted) => kind === "run" && wanted === id, go, key,
    destroy() { poll.stop(); tab?.destroy?.(); },
  };
}

export function address(id, tab = "", query = "") {
  return `#/run/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}${query ? `?${query}` : ""}`;
}

function headOf(look) {
  const { progress } = look;
  return [
    h(
      "div",
      { class: "run-line" },
      h("h1", {}, look.status.name),
      badge(look.state, look.status.exit_code),
      h("span", { class: "note" }, where(look)),
    ),
    whyOf(look),
    progress.step === null || progress.step === undefined ? null : progressOf(look),
    h(
      "dl",
      { class: "tiles" },
      tilesOf(look).map(([title, value, hint]) => h("div", { title: hint }, h("dt", {}, title), h("dd", {}, value))),
    ),
    straggling(look),
  ];
}

function whyOf({ status, state }) {
  const starts = status.expected_start ? `starts about ${at(status.expected_start)}` : "";
  const text = [status.why, starts].filter(Boolean).join("; ");
  return text ? h("p", { class: `run-reason ${stateKind(state)}` }, text) : null;
}

function at(stamp) {
  return moment(Date.parse(stamp) / 1000);
}

function where(look) {
  const { status } = look;
  const job = status.job_id ? `job ${status.job_id}` : status.scheduler === "local" ? "on this machine" : "";
  const attempt = look.attempts.length > 1 ? `attempt ${look.attempts.length}` : "";
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
  const steps = `Step ${number(progress.step)}${progress.total_steps ? ` of ${number(progress.total_steps)}` : ""}`;
  const epoch = progress.epoch ? `epoch ${progress.epoch}${progress.epochs ? ` of ${progress.epochs}` : ""}` : "";
  const end = look.time + progress.eta_seconds;
  const eta = live && progress.eta_seconds !== null ? `${rough(progress.eta_seconds)} left, until ${moment(end)}` : "";
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
  const tiles = TILES.filter((name) => name in look.values).map((name) => [
    metricName(name),
    metricValue(name, look.values[name]),
  ]);
  const step = look.values.step_seconds;
  if (step !== undefined) tiles.push(["time per step", small(step)]);
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
    number(look.progress.saved_step),
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
  return h("p", { class: "notice warn" }, `The others wait for ${named}${more}.`);
}

function alarm(link, look) {
  if (!look.error) return link.removeAttribute("data-alarm");
  link.setAttribute("data-alarm", "");
  link.setAttribute("aria-label", "Findings: a rank failed");
}
