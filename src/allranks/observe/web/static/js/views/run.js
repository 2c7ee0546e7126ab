// One run: its head, always there, and a tab below it.
import { get, follow, Refused } from "../api.js";
import { address } from "../address.js";
import { fill, h, refill } from "../dom.js";
import { problem, select } from "../parts.js";
import { attemptsTab } from "./attempts.js";
import { findingsTab } from "./findings.js";
import { jobTab } from "./job.js";
import { logsTab } from "./logs.js";
import { overviewTab } from "./overview.js";
import { headOf } from "./run_head.js";

const OF_ALL = ["logs", "attempts", "findings"]; // of a job array: without a choice they are of all tasks
const TABS = [["", "Overview", overviewTab], ["logs", "Logs", logsTab], ["attempts", "Attempts", attemptsTab],
  ["findings", "Findings", findingsTab], ["job", "Job", jobTab]];

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
    const fresh = answer.changed || !look || gone;
    if (fresh) show(answer.data);
    await tab?.update?.(look, fresh);
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
    const any = OF_ALL.includes(name) ? "All tasks" : task ? "Running or newest task" : shownTask(look);
    const now = [any, task, ...look.tasks].join();
    if (tasks.dataset.now === now) return;
    tasks.dataset.now = now;
    const options = [["", any], ...look.tasks.map((each) => [each, `Task ${each}`])];
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
    links[place].scrollIntoView({ block: "nearest", inline: "nearest" });
    panel.setAttribute("aria-labelledby", links[place].id);
    fill(panel);
    tab = TABS[place][2](panel, { id, ask, link, query: now, look });
    if (look) showTasks();
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

// The one that the server chose: it takes one that runs before any other.
function shownTask({ task, attempts }) {
  const last = attempts.findLast((one) => one.array_task === task);
  return `Task ${task} (${last?.outcome === "running" ? "running" : "newest"})`;
}

function alarm(link, look) {
  if (!look.error && !look.failed_tasks.length) return link.removeAttribute("data-alarm");
  link.setAttribute("data-alarm", "");
  link.setAttribute("aria-label", "Findings: a rank failed");
}
