// Ranks × time in colours. Reached by keyboard as well, and told in words for those who do not see it.
import { cssColour, fill, h, setText } from "../dom.js";
import { amount, percent, size, stepTime } from "../format.js";

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const LEFT = 72, BOTTOM = 22, APART = 14; // pixels; the last between two names

export class Heat {
  constructor() {
    this.canvas = h("canvas", {
      class: "heat",
      tabindex: 0,
      role: "img",
      "aria-describedby": "heat-words",
      "aria-label": "Heat map",
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.scale = h("div", { class: "heat-scale", "aria-hidden": "true" });
    this.words = h("p", { class: "note", id: "heat-words" });
    this.spoken = h("span", { class: "visually-hidden", role: "status", "aria-live": "polite" });
    this.box = h("div", { class: "heat-box" }, this.canvas, this.tip);
    this.element = h("div", {}, this.box, h("div", { class: "heat-foot" }, this.words, this.scale), this.spoken);
    this.cell = null;
    this.slow = new Set();
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
    this.repaint = () => this.draw();
    window.addEventListener("themechange", this.repaint);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.show(null));
    this.canvas.addEventListener("blur", () => this.show(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  set(data, ended = false) {
    this.data = data;
    this.ended = ended;
    this.image = paint(data);
    this.canvas.setAttribute("aria-label", `Heat map: ${data.title}`);
    setText(this.words, this.summary());
    fill(this.scale, h("span", {}, this.value(data.low)), h("i"), h("span", {}, this.value(data.high)));
    this.draw();
  }

  // Rows to point out: the ranks that the others wait for.
  mark(rows) {
    const same = rows.length === this.slow.size && rows.every((row) => this.slow.has(row));
    this.slow = new Set(rows);
    if (!same) this.draw();
  }

  value(value) {
    if (value === null || value === undefined) return "nothing";
    const unit = this.data.unit;
    if (this.data.what === "gpu") return percent(value);
    if (unit === "B") return size(value);
    return unit === "s" ? stepTime(value) : `${amount(value)} ${unit}`;
  }

  // In words: the mean now, or at the end, and the rows that stand out.
  summary() {
    const { rows, values } = this.data;
    const last = values.map((row, i) => [rows[i], row.findLast((value) => value !== null)])
      .filter(([, value]) => value !== undefined);
    if (!last.length) return "No samples yet.";
    const mean = last.reduce((sum, [, value]) => sum + value, 0) / last.length;
    const [most, least] = [last.reduce((a, b) => b[1] > a[1] ? b : a), last.reduce((a, b) => b[1] < a[1] ? b : a)];
    const count = `${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
    const when = this.ended ? "At the end" : "Now";
    if (last.length === 1) return `${when}: ${last[0][0]} ${this.value(mean)}.`;
    const [high, low] = [most, least].map(([name, value]) => `${this.value(value)} (${name})`);
    return `${when} over ${count}: mean ${this.value(mean)}, highest ${high}, lowest ${low}.`;
  }

  size() {
    const width = this.box.clientWidth;
    const rows = this.data.rows.length;
    const each = Math.max(Math.min(24, 300 / rows), 1.4);
    return { width, height: Math.round(Math.max(rows * each, 44)) + BOTTOM, each: Math.max(rows * each, 44) / rows };
  }

  draw() {
    if (!this.data || !this.box.clientWidth) return;
    const { width, height, each } = this.size();
    const dense = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * dense, height: height * dense });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = this.canvas.getContext("2d");
    pen.scale(dense, dense);
    pen.imageSmoothingEnabled = false;
    pen.fillStyle = cssColour("--sunken");
    pen.fillRect(LEFT, 0, width - LEFT, height - BOTTOM);
    if (this.image) pen.drawImage(this.image, LEFT, 0, width - LEFT, height - BOTTOM);
    this.gaps(pen, width, each);
    this.labels(pen, width, height, each);
    if (this.cell) this.frame(pen, width, height, each);
  }

  // Lines between rows where there is room for them, and where an attempt followed another.
  gaps(pen, width, each) {
    pen.fillStyle = cssColour("--panel");
    const tall = this.data.rows.length * each, columns = this.data.times.length;
    for (const column of this.data.breaks) pen.fillRect(LEFT + (width - LEFT) * column / columns - 1, 0, 3, tall);
    if (each < 8) return;
    for (let row = 1; row < this.data.rows.length; row += 1) pen.fillRect(LEFT, row * each - 0.5, width - LEFT, 1);
  }

  labels(pen, width, height, each) {
    const font = cssColour("--sans");
    pen.font = `11px ${font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const [row, place] of this.named(each)) {
      const name = this.data.rows[row], slow = this.slow.has(name);
      pen.fillStyle = cssColour(slow ? "--bad" : "--muted");
      pen.font = `${slow ? "bold " : ""}11px ${font}`;
      pen.fillText(cut(pen, name, LEFT - 10), LEFT - 8, place);
    }
    pen.fillStyle = cssColour("--muted");
    pen.font = `11px ${font}`;
    const times = this.data.times;
    if (times.length < 2) return;
    pen.textBaseline = "bottom";
    const count = Math.min(Math.max(Math.floor((width - LEFT) / 130), 1), times.length - 1);
    for (let i = 0; i <= count; i += 1) {
      pen.textAlign = i === 0 ? "left" : i === count ? "right" : "center";
      const time = times[Math.round((times.length - 1) * i / count)];
      pen.fillText(this.clock(time), LEFT + (width - LEFT) * i / count, height - 2);
    }
  }

  // The rows that have room for a name, those to point out first, and where it stands.
  named(each) {
    const rows = [...this.data.rows.keys()], every = Math.ceil(APART / each);
    const slow = rows.filter((row) => this.slow.has(this.data.rows[row]));
    const places = new Map(), tall = rows.length * each;
    for (const row of [...slow, ...rows.filter((row) => row % every === 0)]) {
      const place = Math.min(Math.max((row + 0.5) * each, APART / 2), tall - APART / 2);
      if ([...places.values()].every((other) => Math.abs(other - place) >= APART - 1)) places.set(row, place);
    }
    return places;
  }

  // The day is said where more than one is shown, seconds where it is about minutes.
  clock(time) {
    const span = this.data.times.at(-1) - this.data.times[0], date = new Date(time * 1000);
    const clock = date.toLocaleTimeString("en-GB", {
      hour: "2-digit",
      minute: "2-digit",
      second: span < 3600 ? "2-digit" : undefined,
    });
    return span > 86400 ? `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clock}` : clock;
  }

  frame(pen, width, height, each) {
    const columns = this.data.times.length, [row, column] = this.cell;
    const wide = (width - LEFT) / columns;
    pen.strokeStyle = cssColour("--text");
    pen.lineWidth = 1.5;
    pen.strokeRect(LEFT + column * wide, row * each, Math.max(wide, 3), Math.max(each, 3));
  }

  point(event) {
    const { width, each } = this.size();
    const column = Math.floor((event.offsetX - LEFT) / (width - LEFT) * this.data.times.length);
    const row = Math.floor(event.offsetY / each);
    const inside = column >= 0 && column < this.data.times.length && row >= 0 && row < this.data.rows.length;
    this.show(inside ? [row, column] : null);
  }

  key(event) {
    const moves = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -1e6],
      End: [0, 1e6],
    };
    const move = moves[event.key];
    if (!move || !this.data) return;
    event.preventDefault();
    const [row, column] = this.cell || [0, this.data.times.length - 1];
    const start = this.cell ? move : [0, 0];
    const limit = (value, most) => Math.min(Math.max(value, 0), most - 1);
    this.show([limit(row + start[0], this.data.rows.length), limit(column + start[1], this.data.times.length)]);
    setText(this.spoken, this.tip.textContent);
  }

  show(cell) {
    this.cell = cell;
    this.tip.hidden = !cell;
    this.draw();
    if (!cell) return;
    const [row, column] = cell, { width, each } = this.size();
    const { rows, times, values } = this.data;
    fill(
      this.tip,
      h("b", {}, rows[row]),
      ` ${this.value(values[row][column])} `,
      h("span", { class: "note" }, `at ${this.clock(times[column])}`),
    );
    const left = LEFT + (width - LEFT) * (column + 0.5) / times.length;
    this.tip.style.left = `${Math.min(Math.max(left, 80), width - 90)}px`;
    this.tip.style.top = `${(row + 1) * each + 6}px`;
  }

  destroy() {
    window.removeEventListener("themechange", this.repaint);
    this.watcher.disconnect();
  }
}

// One pixel per cell; the browser enlarges it.
function paint({ values, times, low, high }) {
  if (!times.length || !values.length) return null;
  const canvas = Object.assign(document.createElement("canvas"), { width: times.length, height: values.length });
  const pen = canvas.getContext("2d"), image = pen.createImageData(times.length, values.length);
  values.forEach((row, y) => row.forEach((value, x) => {
    if (value !== null) image.data.set(colour((value - low) / (high - low || 1)), 4 * (y * times.length + x));
  }));
  pen.putImageData(image, 0, 0);
  return canvas;
}

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const below = Math.min(Math.floor(place), STOPS.length - 2), part = place - below;
  return [...STOPS[below].map((value, i) => Math.round(value + (STOPS[below + 1][i] - value) * part)), 255];
}

function cut(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let shown = text;
  while (shown.length > 2 && pen.measureText(`…${shown}`).width > width) shown = shown.slice(1);
  return `…${shown}`;
}
