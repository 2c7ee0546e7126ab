// A plot of lines, or of areas on top of each other, by step: one crosshair runs through all of them.
import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { cssColour, fill, h, setText } from "../dom.js";
import { number, short } from "../format.js";

const HEIGHT = 230;

export class Lines {
  // options: label, height, sync, stacked, log, format(value), x(value), xLabel
  constructor(options) {
    this.options = { height: HEIGHT, format: number, x: short, xLabel: "step", ...options };
    this.log = Boolean(options.log);
    this.hidden = new Set();
    this.lines = [];
    this.plot = h("div", { class: "plot", role: "img", "aria-label": options.label });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", {}, this.plot, this.legend);
    this.plot.style.minHeight = `${this.options.height}px`;
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.plot);
    this.repaint = () => this.build();
    window.addEventListener("themechange", this.repaint);
  }

  // lines: [{name, label, xs, ys, colour: "--series-1", faint, points, extra: not in the legend}]
  set(lines) {
    const look = ({ name, label, colour, faint, points }) => [name, label, colour, faint, points];
    const shape = (all) => JSON.stringify(all.map(look));
    const same = this.chart && shape(lines) === shape(this.lines);
    this.lines = lines;
    this.plot.setAttribute("aria-label", `${this.options.label}. ${this.summary()}`);
    if (!same) return this.build();
    const closer = this.zoomed();
    this.chart.setData(this.data(), !closer);
    if (closer) this.chart.redraw();
    this.tell(null);
  }

  setLog(log) {
    this.log = log;
    this.build();
  }

  summary() {
    return this.lines.filter((line) => !line.extra && line.ys.length)
      .map((line) => `${line.label}: last ${this.options.format(line.ys.at(-1))}`).join(", ");
  }

  data() {
    const lines = this.lines.filter((line) => line.xs.length);
    if (!lines.length) return [[]];
    if (!this.options.stacked) return uPlot.join(this.lines.map((line) => [line.xs, line.ys]));
    let below = new Array(this.lines[0].xs.length).fill(0);
    const sums = this.lines.map((line) => {
      if (!this.hidden.has(line.name)) below = below.map((value, i) => value + (line.ys[i] || 0));
      return below;
    });
    return [this.lines[0].xs, ...sums.reverse()];
  }

  build() {
    this.chart?.destroy();
    this.chart = null;
    if (!this.plot.isConnected || !this.plot.clientWidth || !this.lines.some((line) => line.xs.length)) return;
    this.chart = new uPlot(this.settings(), this.data(), this.plot);
    this.drawLegend();
  }

  settings() {
    const { sync, stacked, format, x, height } = this.options;
    const axis = {
      stroke: cssColour("--muted"),
      font: `11px ${cssColour("--sans")}`,
      grid: { stroke: cssColour("--grid"), width: 1 },
      ticks: { show: false },
    };
    const lines = stacked ? [...this.lines].reverse() : this.lines;
    return {
      width: this.plot.clientWidth, height, padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: {
        sync: sync ? { key: sync, scales: ["x", null] } : undefined,
        y: false,
        points: { size: 7 },
        drag: { x: true, y: false },
      },
      scales: { x: { time: false }, y: this.range() },
      axes: [
        { ...axis, size: 24, gap: 6, space: 64, values: (u, splits) => splits.map(x) },
        {
          ...axis,
          size: 58,
          gap: 6,
          space: 34,
          values: (u, splits) => splits.map((value) => value === null ? "" : format(value)),
        },
      ],
      series: [{}, ...lines.map((line) => this.series(line, stacked))],
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx)] },
    };
  }

  range() {
    if (this.options.stacked) return { range: (u, low, high) => [0, (high || 1) * 1.05] };
    return this.log ? { distr: 3, range: positive } : { range: roomy(this.options.zero) };
  }

  series(line, stacked) {
    const colour = cssColour(line.colour);
    return {
      scale: "y", spanGaps: true, show: !this.hidden.has(line.name), stroke: line.faint ? `${colour}50` : colour,
      width: stacked ? 0.5 : line.faint ? 1 : 1.6,
      fill: stacked ? colour : undefined,
      points: { show: Boolean(line.points) && line.xs.length < 80, size: 5, fill: cssColour("--panel") },
    };
  }

  drawLegend() {
    this.values = new Map();
    this.at = h("span", { class: "at" });
    const entries = this.lines.filter((line) => !line.extra).map((line) => {
      const value = h("output");
      this.values.set(line, value);
      const swatch = h("span", { class: "swatch", "--tint": `var(${line.colour})` });
      const props = { type: "button", title: "Show or hide", "aria-pressed": String(!this.hidden.has(line.name)) };
      return h("button", { ...props, onclick: () => this.toggle(line.name) }, swatch, h("span", {}, line.label), value);
    });
    fill(this.legend, entries, this.at);
    this.tell(null);
  }

  toggle(name) {
    this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
    this.build();
  }

  // Values at the crosshair, or without one the last.
  tell(index) {
    if (!this.values || !this.chart) return;
    const xs = this.chart.data[0];
    const x = index === null || index === undefined ? null : xs[index];
    for (const [line, value] of this.values) setText(value, this.options.format(valueAt(line, x)));
    setText(this.at, x === null ? "" : `${this.options.xLabel} ${this.options.x(x)}`);
  }

  zoomed() {
    const { min, max } = this.chart.scales.x;
    const xs = this.chart.data[0];
    return xs.length > 1 && (min > xs[0] || max < xs.at(-1));
  }

  resize() {
    const width = this.plot.clientWidth;
    if (!this.chart) this.build();
    else if (width && width !== this.chart.width) this.chart.setSize({ width, height: this.options.height });
  }

  destroy() {
    window.removeEventListener("themechange", this.repaint);
    this.watcher.disconnect();
    this.chart?.destroy();
  }
}

// The nearest point at or before x: lines are thinned, so few have one at exactly that step.
function valueAt(line, x) {
  if (x === null) return line.ys.at(-1);
  let [low, high] = [0, line.xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (line.xs[middle] <= x) low = middle + 1; else high = middle;
  }
  return low ? line.ys[low - 1] : undefined;
}

function roomy(zero) {
  return (u, low, high) => {
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [zero ? Math.min(0, low) : low - room, high + room];
  };
}

function positive(u, low, high) {
  if (low === null || !(high > 0)) return [0.1, 1];
  const least = low > 0 ? low : high / 1e4;
  return [least / 1.15, high * 1.15];
}
