// A plot of lines, or of areas on top of each other, by step: one crosshair runs through all of them.
import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { cssColour, fill, h, setText } from "../dom.js";
import { amount, value } from "../format.js";

const HEIGHT = 230;
const FEW = 3, MANY = 80; // points: below the one all lines show them, from the other on none does
const WHOLE_GAP = 2; // of uPlot: a gap reaches from point to point of its line, whatever the others have between

export class Lines {
  // options: label, height, sync, stacked, log, format(value), x(value), xLabel
  constructor(options) {
    this.options = { height: HEIGHT, format: value, x: amount, xLabel: "step", ...options };
    this.log = Boolean(options.log);
    this.hidden = new Set();
    this.lines = [];
    this.x = null; // where the crosshair is
    this.plot = h("div", { class: "plot", role: "img", "aria-label": options.label });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", {}, this.plot, this.legend);
    this.plot.style.minHeight = `${this.options.height}px`;
    this.watcher = new ResizeObserver(() => this.resize());
    this.watcher.observe(this.plot);
    this.repaint = () => this.build();
    window.addEventListener("themechange", this.repaint);
  }

  // lines: [{name, label, xs, ys, colour: "--series-1", faint, points, extra: not in the legend,
  //          lost: [from, to] where it is no number}]; null in ys: no line there
  set(lines) {
    const look = ({ name, label, colour, faint }) => [name, label, colour, faint];
    const shape = (all) => JSON.stringify(all.map(look));
    const same = this.chart && shape(lines) === shape(this.lines);
    this.lines = lines;
    this.plot.setAttribute("aria-label", `${this.options.label}. ${this.summary()}`);
    if (!same) return this.build();
    const closer = this.zoomed();
    this.chart.setData(this.data(), !closer);
    if (closer) this.chart.redraw();
    this.tell();
  }

  setLog(log) {
    this.log = log;
    this.build();
  }

  told() {
    return this.lines.filter((line) => !line.extra);
  }

  summary() {
    return this.told().filter(drawn).map((line) => `${line.label}: last ${this.options.format(valueAt(line))}`).join(", ");
  }

  data() {
    if (!this.lines.some(drawn)) return [[]];
    if (!this.options.stacked) return uPlot.join(this.lines.map(columns), this.lines.map(() => [0, WHOLE_GAP]));
    let below = new Array(this.lines[0].xs.length).fill(0);
    const sums = this.lines.map((line) => {
      if (!this.hidden.has(line.name)) below = below.map((sum, i) => sum + (line.ys[i] || 0));
      return below;
    });
    return [this.lines[0].xs, ...sums.reverse()];
  }

  build() {
    this.chart?.destroy();
    this.chart = null;
    if (!this.plot.isConnected || !this.plot.clientWidth || !this.lines.some(drawn)) return;
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
      width: this.plot.clientWidth, height, padding: [10, 30, 0, 0],
      legend: { show: false },
      cursor: {
        sync: sync ? { key: sync, scales: ["x", null] } : undefined,
        y: false,
        points: { size: 7 },
        drag: { x: true, y: false },
      },
      scales: { x: { time: false }, y: this.range() },
      axes: [
        { ...axis, size: 24, gap: 6, space: 64, values: (u, splits) => splits.map((each) => tick(x(each))) },
        {
          ...axis,
          size: 58,
          gap: 6,
          space: 34,
          values: (u, splits) => splits.map((each) => each === null ? "" : tick(format(each))),
        },
      ],
      series: [{}, ...lines.map((line) => this.series(line, stacked))],
      hooks: {
        drawAxes: [(u) => this.drawLost(u)],
        setCursor: [(u) => { this.x = u.data[0][u.cursor.idx] ?? null; this.tell(); }],
      },
    };
  }

  range() {
    if (this.options.stacked) return { range: (u, low, high) => [0, (high || 1) * 1.05] };
    return this.log ? { distr: 3, range: positive } : { range: roomy(this.options.zero) };
  }

  series({ name, colour, faint }, stacked) {
    const tint = cssColour(colour);
    return {
      scale: "y", spanGaps: false, show: !this.hidden.has(name), stroke: faint ? `${tint}50` : tint,
      width: stacked ? 0.5 : faint ? 1 : 1.6,
      fill: stacked ? tint : undefined,
      points: { show: () => this.dotted(name), size: 5, fill: cssColour("--panel") },
    };
  }

  dotted(name) {
    const line = this.lines.find((each) => each.name === name);
    return line.xs.length < FEW || (Boolean(line.points) && line.xs.length < MANY);
  }

  // Where a line is no number: a band to the end, and the word for it.
  drawLost(u) {
    const { ctx, bbox } = u, dense = window.devicePixelRatio || 1, { min, max } = u.scales.x;
    const seen = ({ name, lost }) => lost && !this.hidden.has(name) && lost[0] <= max && lost[1] >= min;
    ctx.save();
    for (const { lost } of this.told().filter(seen)) {
      const place = (each) => Math.min(Math.max(u.valToPos(each, "x", true), bbox.left), bbox.left + bbox.width);
      const [left, right] = lost.map(place), wide = Math.max(right - left, 3 * dense);
      ctx.fillStyle = cssColour("--bad-soft");
      ctx.fillRect(right - wide, bbox.top, wide, bbox.height);
      ctx.fillStyle = cssColour("--bad");
      ctx.fillRect(right - wide, bbox.top, dense, bbox.height);
      ctx.font = `600 ${11 * dense}px ${cssColour("--sans")}`;
      ctx.textAlign = right - wide > bbox.left + 40 * dense ? "right" : "left";
      ctx.fillText("NaN", right - wide + (ctx.textAlign === "right" ? -5 : 5) * dense, bbox.top + 12 * dense);
    }
    ctx.restore();
  }

  drawLegend() {
    this.values = new Map();
    this.at = h("span", { class: "at" });
    const entries = this.told().map(({ name, label, colour }) => {
      const shown = h("output");
      this.values.set(name, shown);
      const swatch = h("span", { class: "swatch", "--tint": `var(${colour})` });
      const props = { type: "button", title: "Show or hide", "aria-pressed": String(!this.hidden.has(name)) };
      return h("button", { ...props, onclick: () => this.toggle(name) }, swatch, h("span", {}, label), shown);
    });
    fill(this.legend, entries, this.at);
    this.tell();
  }

  toggle(name) {
    this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
    this.build();
  }

  // Values at the crosshair, or without one the last.
  tell() {
    if (!this.values || !this.chart) return;
    for (const line of this.told()) setText(this.values.get(line.name), this.options.format(valueAt(line, this.x)));
    setText(this.at, this.x === null ? "" : `${this.options.xLabel} ${this.options.x(this.x)}`);
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

function drawn(line) {
  return line.xs.length > 0 || Boolean(line.lost);
}

// Its points, and so that the axis reaches there, the ends of where it is no number.
function columns({ xs, ys, lost }) {
  if (!lost) return [xs, ys];
  const more = [...new Set(lost)].filter((each) => !xs.length || each > xs.at(-1));
  return [[...xs, ...more], [...ys, ...more.map(() => null)]];
}

// The nearest point at or before x: lines are thinned, so few have one at exactly that step.
function valueAt({ xs, ys, lost }, x = null) {
  if (lost && (x === null || x >= lost[0])) return NaN;
  let [low, high] = [0, xs.length];
  while (x !== null && low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1; else high = middle;
  }
  return ys.slice(0, x === null ? xs.length : low).findLast((each) => each !== null);
}

// As short as an axis can have it: 0.5, not 0.5000; 3e-04, not 3.00e-04.
function tick(text) {
  return text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "");
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
