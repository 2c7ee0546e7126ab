// All runs: how each stands, live. And the jobs of the queue that are no runs of ours.
import { get, follow, Refused } from "../api.js";
import { fill, h, refill, setText } from "../dom.js";
import { count, plural, span } from "../format.js";
import { badge, card, problem, segments, stateGroup, table } from "../parts.js";
import { reason, runRow } from "./run_row.js";

const FILTERS = [["all", "All"], ["running", "Running"], ["waiting", "Waiting"], ["completed", "Completed"],
  ["failed", "Failed"], ["other", "Other"]];
const HEADS = ["", "State", "Run", "Progress", "Loss", "Nodes", "Time", "Attempts", "Goodput"];
const MOST = 6;

// ``came``: the run that one comes back from, where the focus goes.
export function runsView(root, query, came = "") {
  const rows = new Map();
  const chosen = new Set(query.getAll("runs"));
  let data = null, kind = query.get("state") || "all", limit = 100;

  const search = h("input", {
    class: "field",
    type: "search",
    placeholder: "Search runs",
    "aria-label": "Search runs",
    oninput: () => changed(),
    value: query.get("q") || "",
  });
  const filters = segments("State", FILTERS, kind, (value) => { kind = value; changed(); });
  const compare = h(
    "button",
    {
      class: "button compare",
      type: "button",
      disabled: true,
      onclick: () => { location.hash = `#/compare?${new URLSearchParams([...chosen].map((id) => ["runs", id]))}`; },
    },
    "Compare",
  );
  const total = h("span", { class: "note", role: "status", "aria-live": "polite" });
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
    h("div", { class: "toolbar" }, search, filters, total, compare),
    h("section", { class: "card", "aria-label": "Runs" }, heads, body, empty, h("div", { class: "more" }, more)),
    jobs);
  fill(empty, "Reading the runs …");
  empty.hidden = false;

  const poll = follow(async () => {
    const answer = await asked();
    if (!answer.changed && data) return;
    const first = !data;
    data = answer.data;
    arrange();
    if (first && came) rows.get(came)?.element.querySelector("a.run-name").focus();
    showJobs(jobs, data.jobs);
  });

  async function asked() {
    try {
      return await get("/api/runs", { limit });
    } catch (error) {
      if (!data && error instanceof Refused) fill(empty, problem(error));
      throw error;
    }
  }

  // The address holds what was chosen: one comes back to it.
  function address() {
    const now = [["q", search.value], ["state", kind === "all" ? "" : kind], ...[...chosen].map((id) => ["runs", id])];
    const words = new URLSearchParams(now.filter(([, value]) => value));
    return words.size ? `#/?${words}` : "#/";
  }

  function changed() {
    history.replaceState(null, "", address());
    arrange();
  }

  function arrange() {
    if (!data) return;
    const wanted = data.runs.filter(matches);
    for (const run of data.runs) {
      if (!rows.has(run.id)) rows.set(run.id, runRow(run, chosen, choose));
      rows.get(run.id).update(run);
    }
    const shown = wanted.map((run) => rows.get(run.id).element);
    if (shown.length !== body.children.length || shown.some((element, i) => body.children[i] !== element)) {
      const focused = document.activeElement;
      body.replaceChildren(...shown);
      if (body.contains(focused)) focused.focus();
    }
    more.hidden = !data.more;
    setText(more, `Show more (${count(data.more)})`);
    empty.hidden = wanted.length > 0;
    heads.hidden = !wanted.length;
    if (!data.runs.length) fill(empty, "No runs yet. Start one: ", h("code", {}, "allranks run train.py"));
    else fill(empty, "No run is like that.");
    const all = data.runs.length + data.more;
    setText(
      total,
      wanted.length === data.runs.length ? plural(all, "run") : `${count(wanted.length)} of ${plural(all, "run")}`,
    );
  }

  function matches(run) {
    if (kind !== "all" && stateGroup(run.state) !== kind) return false;
    const text = [run.id, run.name, run.job_id, run.nodes, run.state, run.why, run.folder].join(" ").toLowerCase();
    return search.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function choose(id, on) {
    on ? chosen.add(id) : chosen.delete(id);
    changed();
    showCompare();
  }

  function showCompare() {
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
  showCompare();
  return { key, address, destroy() { poll.stop(); } };
}

function showJobs(place, jobs) {
  if (!jobs?.length) return fill(place);
  const rows = jobs.map((job) => [job.job_id, job.name, badge(job.state), job.partition, job.nodes || "–",
    job.time_limit ? span(job.time_limit) : "–", reason(job)]);
  const shown = card(
    "Other jobs in your queue",
    null,
    table([["Job"], ["Name"], ["State"], ["Partition"], ["Nodes"], ["Time limit"], ["Why"]], rows),
  );
  shown.classList.add("spaced");
  refill(place, shown);
}
