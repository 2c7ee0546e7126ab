// Some runs side by side: one metric and the throughput over each other, and what they differ in.
import { address } from "../address.js";
import { get, follow } from "../api.js";
import { Lines } from "../charts/lines.js";
import { fill, h, refill } from "../dom.js";
import { amount, count, metricName, metricValue, percent, span } from "../format.js";
import { card, check, problem, segments, select, table } from "../parts.js";

const MOST = 6;

export function compareView(root, query) {
  let chosen = query.getAll("runs");
  let x = query.get("x") || "step", metric = query.get("metric") || "train_loss", weight = 0;
  let known = [], data = null, turn = 0;
  const byTime = () => x === "time";
  const main = new Lines({
    label: "The metric of each run",
    sync: "compare",
    height: 320,
    format: (value) => metricValue(metric, value),
    x: (value) => byTime() ? span(value) : amount(value),
    xLabel: "at",
  });
  const speed = new Lines({
    label: "Throughput of each run",
    sync: "compare",
    zero: true,
    format: amount,
    x: (value) => byTime() ? span(value) : amount(value),
    xLabel: "at",
  });
  const chips = h("div", { class: "chips" }), metrics = h("span");
  const tables = h("div", { class: "stack" }), trouble = h("div");
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: 0,
    "aria-label": "Smoothing",
    oninput: () => { weight = Number(slider.value); load(); },
  });
  const ways = [["step", "By step"], ["time", "By time"]];
  const mainCard = card("Metric", [
    metrics,
    h("label", { class: "slider" }, "Smooth", slider),
    check("Log scale", false, (on) => main.setLog(on)),
    segments("By", ways, x, (value) => { x = value; note(); load(); }),
  ], main.element);
  const speedCard = card("Throughput", null, speed.element);
  const plots = h("div", { class: "stack" }, mainCard, speedCard, tables);
  fill(root, h("h1", { class: "page-title" }, "Compare runs"), chips, trouble, plots);

  function note() {
    const now = new URLSearchParams([...chosen.map((id) => ["runs", id]), ["x", x], ["metric", metric]]);
    history.replaceState(null, "", `#/compare?${now}`);
  }

  async function load() {
    plots.hidden = !chosen.length;
    if (!chosen.length) return fill(trouble, h("div", { class: "empty" }, "Choose the runs to compare."));
    const mine = ++turn;
    try {
      const answer = await get("/api/compare", { runs: chosen, x, metric, smooth: weight || "" });
      if (mine !== turn) return; // something else was chosen meanwhile
      const missing = chosen.filter((id) => !answer.data.runs.some((run) => run.id === id));
      fill(trouble, missing.length ? problem(`Not there (any more): ${missing.join(", ")}`) : null);
      if (!answer.changed && data === answer.data) return;
      data = answer.data;
      show();
    } catch (error) {
      fill(trouble, problem(error));
    }
  }

  const colour = (id) => `--series-${chosen.indexOf(id) + 1}`;
  const label = (run) => data.runs.filter((one) => one.name === run.name).length > 1 ? run.id : run.name;

  function lines(name) {
    return data.runs.filter((run) => data.curves[run.id][name]).map((run) => {
      const [xs, ys] = data.curves[run.id][name];
      return { name: run.id, label: label(run), xs, ys, colour: colour(run.id), lost: data.nonfinite[run.id][name] };
    });
  }

  function show() {
    if (metrics.dataset.names !== data.names.join()) {
      metrics.dataset.names = data.names.join();
      fill(
        metrics,
        select(
          "Metric",
          data.names.map((name) => [name, metricName(name)]),
          metric,
          (name) => { metric = name; note(); load(); },
        ),
      );
    }
    main.set(lines(metric));
    const inAll = (name) => data.runs.every((run) => data.curves[run.id][name]);
    const rate = inAll("tokens_per_second") ? "tokens_per_second" : "samples_per_second";
    const rates = lines(rate);
    speedCard.hidden = !rates.length;
    speedCard.querySelector("h2").textContent = `Throughput, ${metricName(rate)}`;
    speed.set(rates);
    refill(tables, lastCard(), differingCard());
    document.body.dataset.compared = String(data.runs.length);
  }

  const heads = (kind) => [["", ""], ...data.runs.map((run) => [label(run), kind])];

  function lastCard() {
    const rows = data.last.map((row) => [
      metricName(row.name),
      ...data.runs.map((run) => metricValue(row.name, data.nonfinite[run.id][row.name] ? NaN : row.values[run.id])),
    ]);
    return rows.length ? card("Last values", null, table(heads("number"), rows)) : null;
  }

  function differingCard() {
    if (data.runs.length < 2) return null;
    const rows = data.differing.map((row) => [
      row.name,
      ...data.runs.map((run) => h("code", {}, row.values[run.id] ?? "–")),
    ]);
    const same = "Their plans and settings are the same.";
    return card("What differs", null, rows.length ? table(heads("setting"), rows) : h("p", { class: "note" }, same));
  }

  function showChips() {
    const names = Object.fromEntries(known.map((run) => [run.id, run]));
    const others = known.filter((run) => !chosen.includes(run.id));
    const entries = others.map((run) => h("option", { value: run.id }, `${run.name} · ${run.id}`));
    const add = () => change([...chosen, adding.value]);
    const adding = h("select", { class: "select", "aria-label": "Add a run", onchange: add },
      h("option", { value: "" }, "Add a run …"), entries);
    fill(chips, chosen.map((id) => chip(id, names[id])), chosen.length < MOST && others.length ? adding : null);
  }

  function chip(id, run) {
    const leave = () => change(chosen.filter((each) => each !== id));
    return h("span", { class: "chip" },
      h("span", { class: "swatch", "--tint": `var(${colour(id)})` }),
      h("a", { href: address(id) }, run?.name || id),
      h("span", { class: "note" }, run ? stateOf(run) : ""),
      h("button", { type: "button", "aria-label": `Leave out ${id}`, onclick: leave }, "×"));
  }

  function stateOf(run) {
    if (run.step === null) return run.state;
    const share = run.total_steps ? percent(Math.min(run.step / run.total_steps, 1)) : `step ${count(run.step)}`;
    return `${run.state}, ${share}`;
  }

  function change(ids) {
    chosen = ids;
    note();
    showChips();
    load();
  }

  showChips();
  const poll = follow(async () => {
    const answer = await get("/api/runs", { limit: 1000, curves: 0 });
    if (answer.changed || !known.length) {
      known = answer.data.runs;
      if (!chips.contains(document.activeElement)) showChips();
    }
    await load();
  }, 4000);
  return { destroy() { poll.stop(); main.destroy(); speed.destroy(); } };
}
