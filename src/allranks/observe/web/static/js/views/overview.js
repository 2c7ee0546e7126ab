// The plots of a run. What is quick to read comes first; the heat map does not hold up the rest.
import { Heat } from "../charts/heat.js";
import { Lines } from "../charts/lines.js";
import { fill, h, refill, setText } from "../dom.js";
import { metricName, metricValue, percent, stepTime } from "../format.js";
import { choices } from "../choices.js";
import { card, check, segments, select } from "../parts.js";
import { nodesCard } from "./nodes.js";

const PHASES = ["data", "forward", "backward", "communication", "optimizer", "checkpoint", "other"];
const HEATS = {
  gpu: "GPU use",
  gpu_memory: "GPU memory",
  power: "Power",
  temperature: "Temperature",
  cpu: "CPU",
  step: "Step time",
  compute: "Computing",
  wait: "Waiting",
  data: "Data",
};
const USUAL = new Set([
  "train_loss",
  "val_loss",
  "samples_per_second",
  "tokens_per_second",
  "mfu",
  "step_seconds",
  ...PHASES.map((name) => `${name}_seconds`),
]);
const HEAT_EVERY = 8000;

export function overviewTab(root, { id, ask, link }) {
  const sync = `run-${id}`;
  const kept = choices();
  const loss = new Lines({ label: "Loss by step", sync, log: kept.log });
  const speed = new Lines({
    label: "Throughput by step",
    sync,
    zero: true,
    format: (value) => metricValue(rateName, value),
  });
  const other = new Lines({
    label: "Metric by step",
    sync,
    height: 270,
    format: (value) => metricValue(kept.metric || "", value),
  });
  const areas = new Lines({ label: "Time of a step by phase", sync, stacked: true, format: stepTime, height: 190 });
  const heat = new Heat();
  let rateName = "samples_per_second", data = null, ended = false;
  let drawn = 0, heatKinds = "", heatWhat = kept.heat || ""; // of the heat map: when, which there are, which is shown

  const weight = h("output", {}, percent(kept.smooth));
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: kept.smooth,
    "aria-label": "Smoothing",
    oninput: smoothing,
  });
  const rates = h("span"), metric = h("span"), kinds = h("span");
  const phaseOver = h("span", { class: "note" });
  const phaseBar = h("div", { class: "phase-bar", role: "img" }), phaseWords = h("ul", { class: "phase-words" });
  const lossCard = card("Loss", [h("label", { class: "slider" }, "Smooth", slider, weight),
    check("Log scale", kept.log, (on) => { kept.set("log", on); loss.setLog(on); })], loss.element);
  const speedCard = card("Throughput", rates, speed.element);
  const phaseCard = card("Where a step's time goes", phaseOver, phaseBar, phaseWords, areas.element);
  const otherCard = card("Metric", metric, other.element);
  const heatCard = card("Ranks over time", kinds, heat.element);
  const nodes = h("div");
  const waiting = h("div", { class: "empty" }, "Reading …");
  const grid = h("div", { class: "grid", hidden: true }, lossCard, speedCard, phaseCard, otherCard);
  fill(root, waiting, grid, h("div", { class: "stack" }, heatCard, nodes));
  heatCard.hidden = true;

  let timer = 0, turn = 0; // which question is the last: one that was overtaken is of no use
  let reading = plot();
  reading.catch(() => {}); // it is asked again
  function smoothing() {
    setText(weight, percent(Number(slider.value)));
    kept.set("smooth", Number(slider.value));
    clearTimeout(timer);
    timer = setTimeout(() => plot(), 60);
  }

  async function plot() {
    const mine = ++turn;
    const answer = await ask("/plots", { smooth: kept.smooth || "", names: kept.metric });
    if (mine !== turn || (!answer.changed && data === answer.data)) return;
    data = answer.data;
    show();
  }

  function show() {
    const any = Object.keys(data.series).length > 0;
    waiting.hidden = any;
    grid.hidden = !any;
    if (!any) fill(
      waiting,
      ended ? "It wrote no metrics. " : "No metrics yet. ",
      "A Trainer writes them; of any other script there are ",
      h("a", { href: link("logs") }, "its logs"),
      " and what its nodes do.",
    );
    showLoss();
    showRates();
    showPhases();
    showMetric();
    document.body.dataset.plots = String(Number(document.body.dataset.plots || 0) + 1);
  }

  function line(name, colour, more = {}) {
    const [xs, ys] = data.series[name];
    return { name, label: metricName(name), xs, ys, colour, lost: data.nonfinite[name], ...more };
  }

  function showLoss() {
    const lines = [];
    for (const [name, colour] of [["train_loss", "--series-1"], ["val_loss", "--series-2"]]) {
      if (!data.series[name]) continue;
      const soft = data.smooth[name];
      if (soft) lines.push(line(name, colour, { name: `${name} raw`, faint: true, extra: true, lost: null }));
      lines.push({
        ...line(name, colour, { points: name === "val_loss" }),
        ...(soft ? { xs: soft[0], ys: soft[1] } : {}),
      });
    }
    lossCard.hidden = !lines.length;
    loss.set(lines);
  }

  function showRates() {
    const there = ["samples_per_second", "tokens_per_second", "mfu"].filter((name) => data.series[name]);
    speedCard.hidden = !there.length;
    if (!there.length) return;
    if (!there.includes(rateName)) rateName = there[0];
    if (rates.dataset.there !== there.join()) {
      rates.dataset.there = there.join();
      if (there.length === 1) fill(rates, h("span", { class: "note" }, metricName(rateName)));
      else fill(
        rates,
        segments(
          "Throughput as",
          there.map((name) => [name, metricName(name)]),
          rateName,
          (name) => { rateName = name; showRates(); },
        ),
      );
    }
    speed.set([line(rateName, "--series-3")]);
  }

  function showPhases() {
    const { steps, parts } = data.phases;
    const there = PHASES.filter((name) => parts[name]?.some((value) => value > 0));
    phaseCard.hidden = !there.length;
    areas.set(there.map((name) => ({ name, label: name, xs: steps, ys: parts[name], colour: `--phase-${name}` })));
    areas.legend.hidden = true;
  }

  function showMetric() {
    const names = data.names.filter((name) => !USUAL.has(name)).concat(data.names.filter((name) => USUAL.has(name)));
    otherCard.hidden = !names.length;
    if (!names.includes(kept.metric)) kept.metric = data.chosen[0] || names[0] || "";
    if (metric.dataset.names !== names.join()) {
      metric.dataset.names = names.join();
      fill(
        metric,
        select(
          "Metric",
          names.map((name) => [name, metricName(name)]),
          kept.metric,
          (name) => { kept.set("metric", name); plot(); },
        ),
      );
    }
    if (!kept.metric) return;
    if (data.series[kept.metric]) other.set([line(kept.metric, "--series-4")]);
    else plot();
  }

  async function showHeat(force = false) {
    if (!data?.heats.length) { heatCard.hidden = true; return; }
    if (!force && Date.now() - drawn < HEAT_EVERY && heatKinds === data.heats.join()) return;
    drawn = Date.now();
    if (!data.heats.includes(heatWhat)) heatWhat = data.heats[0];
    if (heatKinds !== data.heats.join()) {
      heatKinds = data.heats.join();
      fill(
        kinds,
        segments(
          "Show",
          data.heats.map((what) => [what, HEATS[what] || what]),
          heatWhat,
          (what) => { heatWhat = what; kept.set("heat", what); showHeat(true); },
        ),
      );
    }
    const answer = await ask("/heat", { what: heatWhat });
    if (answer.data.what !== heatWhat) return; // another was chosen meanwhile
    heatCard.hidden = false;
    heat.set(answer.data, ended);
    document.body.dataset.heat = heatWhat;
  }

  function showNow(look) {
    phasesNow(look.phases, phaseBar, phaseWords);
    setText(phaseOver, look.ended ? "over all steps" : "over the last steps");
    refill(nodes, look.nodes.length ? nodesCard(look) : null);
  }

  return {
    async update(look, changed) {
      const first = reading;
      ended = look.ended;
      reading = null;
      if (changed || !data) showNow(look);
      if (first) await first;
      else if (changed || !data) await plot();
      heat.mark(look.ranks.filter((rank) => rank.straggler).map((rank) => `rank ${rank.rank}`));
      showHeat().catch((error) => { if (error.name !== "AbortError") console.warn(error.message); });
    },
    destroy() { [loss, speed, other, areas, heat].forEach((chart) => chart.destroy()); clearTimeout(timer); },
  };
}

function phasesNow(phases, place, words) {
  const there = PHASES.filter((name) => phases[name] > 0);
  const whole = there.reduce((sum, name) => sum + phases[name], 0);
  place.hidden = words.hidden = !whole;
  if (!whole) return;
  place.setAttribute("aria-label", `A step takes ${stepTime(whole)}`);
  fill(
    place,
    there.map((name) => h("i", {
      "--share": `${(100 * phases[name] / whole).toFixed(2)}%`,
      "--tint": `var(--phase-${name})`,
      title: `${name}: ${stepTime(phases[name])}`,
    })),
  );
  fill(words, there.map((name) => h("li", {}, h("span", { class: "swatch", "--tint": `var(--phase-${name})` }), name,
    h("b", {}, percent(phases[name] / whole)), h("span", { class: "note" }, stepTime(phases[name])))));
}
