// All runs: how each stands, live. And the jobs of the queue that are no runs of ours.
import { get, follow } from "../api.js";
import { fill, h, refill, setText } from "../dom.js";
import { duration, moment, number, percent, plural, rough } from "../format.js";
import { badge, bar, card, segments, spark, stateKind, table } from "../parts.js";

const FILTERS = [["all", "All"], ["live", "Running"], ["warn", "Waiting"], ["good", "Completed"], ["bad", "Failed"]];
const HEADS = ["", "State", "Run", "Progress", "Loss", "Nodes", "Time", "Attempts", "Goodput"];
const FACTS = ["Nodes", "Time", "Attempts", "Goodput"];
const MOST = 6;

// ``came``: the run that one comes back from, where the focus goes.
export function runsView(root, query, came = "") {
  const rows = new Map();
  const chosen = new Set();
  let data = null, kind = query.get("state") || "all", limit = 100;

  const search = h("input", {
    class: "field",
    type: "search",
    placeholder: "Search runs",
    "aria-label": "Search runs",
    oninput: () => arrange(),
    value: query.get("q") || "",
  });
  const filters = segments("State", FILTERS, kind, (value) => { kind = value; arrange(); });
  const compare = h(
    "button",
    {
      class: "button",
      type: "button",
      disabled: true,
      onclick: () => { location.hash = `#/compare?${new URLSearchParams([...chosen].map((id) => ["runs", id]))}`; },
    },
    "Compare",
  );
  const count = h("span", { class: "note", role: "status", "aria-live": "polite" });
  const body = h("div", { class: "run-list", role: "list", "aria-label": "Runs" });
  const heads = h("div", { class: "run-heads", "aria-hidden": "true" }, HEADS.map((text) => h("span", {}, text)));
  const more = h(
    "button",
    { class: "button", type: "button", hidden: true, onclick: () => { limit += 200; poll.now(); } },
    "Show more",
  );
  const empty = h("div", { class: "empty", hidden: true });
  const jobs = h("div");
  fill(root, h("h1", { class: "visually-hidden" }, "Runs"),
    h("div", { class: "toolbar" }, search, filters, count, h("span", { class: "grow" }), compare),
    h("section", { class: "card", "aria-label": "Runs" }, heads, body, empty, h("div", { class: "more" }, more)),
    jobs);
  fill(empty, "Reading the runs …");
  empty.hidden = false;

  const poll = follow(async () => {
    const answer = await get("/api/runs", { limit });
    if (!answer.changed && data) return;
    const first = !data;
    data = answer.data;
    arrange();
    if (first && came) rows.get(came)?.element.querySelector("a.run-name").focus();
    showJobs(jobs, data.jobs);
  });

  function arrange() {
    if (!data) return;
    const wanted = data.runs.filter(matches);
    for (const run of data.runs) {
      if (!rows.has(run.id)) rows.set(run.id, row(run, chosen, choose));
      rows.get(run.id).update(run);
    }
    const shown = wanted.map((run) => rows.get(run.id).element);
    if (shown.length !== body.children.length || shown.some((element, i) => body.children[i] !== element)) {
      const focused = document.activeElement;
      body.replaceChildren(...shown);
      if (body.contains(focused)) focused.focus();
    }
    more.hidden = !data.more;
    setText(more, `Show more (${number(data.more)})`);
    empty.hidden = wanted.length > 0;
    heads.hidden = !wanted.length;
    if (!data.runs.length) fill(empty, "No runs yet. Start one: ", h("code", {}, "allranks run train.py"));
    else fill(empty, "No run is like that.");
    const all = data.runs.length + data.more;
    setText(
      count,
      wanted.length === data.runs.length ? plural(all, "run") : `${number(wanted.length)} of ${plural(all, "run")}`,
    );
  }

  function matches(run) {
    if (kind !== "all" && stateKind(run.state) !== kind) return false;
    const text = [run.id, run.name, run.job_id, run.nodes, run.state, run.why, run.folder].join(" ").toLowerCase();
    return search.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function choose(id, on) {
    on ? chosen.add(id) : chosen.delete(id);
    compare.disabled = chosen.size < 2 || chosen.size > MOST;
    compare.classList.toggle("primary", !compare.disabled);
    setText(compare, chosen.size ? `Compare ${chosen.size}` : "Compare");
    compare.title = chosen.size > MOST ? `At most ${MOST} runs` : "Choose 2 to 6 runs";
  }

  function key(event) {
    if (event.key === "/") { search.focus(); search.select(); return true; }
    const links = [...body.querySelectorAll("a.run-name")];
    const at = links.indexOf(document.activeElement?.closest?.(".run")?.querySelector("a.run-name"));
    const to = {
      ArrowDown: at + 1,
      j: at + 1,
      ArrowUp: at - 1,
      k: at - 1,
      Home: 0,
      End: links.length - 1,
    }[event.key];
    if (to !== undefined && links.length) {
      links[Math.min(Math.max(to, 0), links.length - 1)].focus();
      return true;
    }
    if (event.key === "x" && at >= 0) { links[at].closest(".run").querySelector("input").click(); return true; }
    return false;
  }

  search.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    body.querySelector("a.run-name")?.focus();
  });
  return { key, destroy() { poll.stop(); } };
}

function row(run, chosen, choose) {
  const address = `#/run/${encodeURIComponent(run.id)}`;
  const tick = h("input", {
    type: "checkbox",
    "aria-label": `Choose ${run.id} for a comparison`,
    checked: chosen.has(run.id),
    onchange: () => choose(run.id, tick.checked),
  });
  const state = h("div", { class: "run-state" });
  const name = h("a", { class: "run-name", href: address });
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
    if (!event.target.closest("a, input") && !String(getSelection())) location.hash = address;
  });
  let before = "";
  function update(now) {
    const text = JSON.stringify(now);
    if (text === before) return;
    before = text;
    setText(name, now.name);
    fill(state, badge(now.state, now.exit_code));
    const job = now.job_id ? `job ${now.job_id}` : now.scheduler === "local" ? "here" : "";
    const tasks = now.tasks ? plural(now.tasks, "task") : "";
    setText(about, [job, tasks, now.id].filter(Boolean).join(" · "));
    setText(why, reason(now));
    why.classList.toggle("bad", stateKind(now.state) === "bad");
    why.hidden = !why.textContent;
    fill(progress, progressCell(now));
    fill(loss, lossCell(now));
    facts.nodes.set(now.nodes || "–", now.nodes);
    facts.time.set(now.elapsed ? duration(now.elapsed) : "–");
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

function reason(run) {
  const starts = run.expected_start ? `starts about ${moment(run.expected_start)}` : "";
  return [run.why, starts].filter(Boolean).join("; ");
}

function progressCell(run) {
  if (run.step === null) return h("span", { class: "note" }, "–");
  const share = run.total_steps ? Math.min(run.step / run.total_steps, 1) : null;
  const steps = run.total_steps ? `${number(run.step)} / ${number(run.total_steps)}` : `step ${number(run.step)}`;
  const left = run.eta !== null ? `${rough(run.eta)} left` : share !== null ? percent(share) : "";
  return [share === null ? null : bar(share, stateKind(run.state) === "live" ? "" : stateKind(run.state)),
    h("div", { class: "under" }, h("span", {}, steps), h("span", { class: "note" }, left))];
}

function lossCell(run) {
  if (!run.curve?.length) return h("span", { class: "note" }, "–");
  const last = run.curve.at(-1);
  return [
    spark(run.curve, `Loss from ${number(run.curve[0])} to ${number(last)}`),
    h("span", { class: "last" }, number(last, 3)),
  ];
}

function showJobs(place, jobs) {
  if (!jobs?.length) return fill(place);
  const rows = jobs.map((job) => [job.job_id, job.name, badge(job.state), job.partition, job.nodes || "–",
    job.time_limit ? duration(job.time_limit) : "–", reason(job)]);
  const shown = card(
    "Other jobs in your queue",
    null,
    table([["Job"], ["Name"], ["State"], ["Partition"], ["Nodes"], ["Time limit"], ["Why"]], rows),
  );
  shown.classList.add("spaced");
  refill(place, shown);
}
