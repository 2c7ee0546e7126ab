// Numbers and times as people read them: the texts are those of wording.py, for the same numbers.

const NONE = "–";
const COUNTS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const RATES = [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]];
const SIZES = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

// Steps, lines, runs: whole.
export function count(number) {
  return absent(number) ? NONE : number.toLocaleString("en-US");
}

// A metric: 0.4312, 2.97e-04, NaN.
export function value(number) {
  if (absent(number)) return NONE;
  if (!Number.isFinite(number)) return beyond(number);
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size < 1e-3 || size >= 999_999.5) return exponent(number, 2);
  if (size >= 9999.5) return fixed(number, 0);
  return size >= 1 ? String(Number(fixed(number, 3 - Math.floor(Math.log10(size))))) : fixed(number, 4);
}

// A count or a rate: 640, 12.3k, 1.25M.
export function amount(number) {
  if (absent(number)) return NONE;
  if (!Number.isFinite(number)) return beyond(number);
  const found = COUNTS.find(([factor, unit]) => Math.abs(number) >= factor * (unit === "k" ? 9.9995 : 0.9995));
  return found ? three(number / found[0]) + found[1] : three(number);
}

// Bytes: 61.2 GiB, 640 MiB.
export function size(number) {
  return scaled(number, SIZES, "B");
}

// Bytes a second, in powers of ten as links and disks are sold: 2.13 GB/s.
export function rate(number) {
  return scaled(number, RATES, "B/s");
}

function scaled(number, units, least) {
  if (unknown(number)) return NONE;
  const found = units.find(([factor]) => Math.abs(number) >= factor * 0.9995);
  return found ? `${three(number / found[0])} ${found[1]}` : `${fixed(number, 0)} ${least}`;
}

// 34 %; <1 % for a little that is not nothing, and 100 only where nothing is left.
export function percent(share) {
  if (unknown(share)) return NONE;
  if (share > 0 && share < 0.005) return "<1 %";
  return `${fixed(share > 0.99 && share < 1 ? 99 : share * 100, 0)} %`;
}

// A time in words: 45 s, 2 min 30 s, 12 min, 2 h 05 min, 3 d 4 h.
export function span(seconds) {
  if (unknown(seconds)) return NONE;
  if (seconds < 119.5) return `${fixed(Math.max(seconds, 0), 0)} s`;
  const whole = seconds < 599.5 ? even(seconds) : 60 * even(seconds / 60);
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (whole < 600) return both(minutes, "min", whole % 60, "s", 2);
  if (hours < 1) return `${minutes} min`;
  return hours < 48 ? both(hours, "h", minutes, "min", 2) : both(Math.floor(hours / 24), "d", hours % 24, "h", 1);
}

function both(large, unit, small, smaller, digits) {
  return small ? `${large} ${unit} ${String(small).padStart(digits, "0")} ${smaller}` : `${large} ${unit}`;
}

// A time of a step: 1.24 s, 213 ms, 62 µs; from ten minutes on in words.
export function stepTime(seconds) {
  if (unknown(seconds)) return NONE;
  if (seconds >= 599.5) return span(seconds);
  for (const [factor, unit] of [[1, "s"], [1e3, "ms"]]) {
    if (seconds * factor >= 0.9995) return `${three(seconds * factor)} ${unit}`;
  }
  return seconds > 0 ? `${fixed(seconds * 1e6, 0)} µs` : "0 ms";
}

// Three digits at most: 412, 13.7, 0.31, 2, 0.004.
function three(number) {
  const size = Math.abs(number);
  if (size >= 99.95) return fixed(number, 0);
  if (size > 0 && size < 1e-4) return exponent(number, 1).replace(".0e", "e");
  if (size < 0.00995) return String(Number(number.toPrecision(2)));
  return String(Number(fixed(number, size >= 9.995 ? 1 : 2)));
}

// Two digits at least, as Python writes them: 2.97e-04.
function exponent(number, digits) {
  return number.toExponential(digits).replace(/e(.)(\d)$/, "e$10$2");
}

// As toFixed; of two that are equally near the even one, as Python rounds.
function fixed(number, digits) {
  const moved = number * 10 ** digits;
  const tie = (number * 1024) % 1 === 0 && Math.abs(moved % 1) === 0.5;
  return (tie ? 2 * Math.round(moved / 2) / 10 ** digits : number).toFixed(digits);
}

function even(number) {
  return Number(fixed(number, 0));
}

// What is no finite number: NaN, inf, -inf.
function beyond(number) {
  return String(number).replace("Infinity", "inf");
}

function absent(number) {
  return number === null || number === undefined;
}

function unknown(number) {
  return absent(number) || !Number.isFinite(number);
}

export function moment(seconds) {
  if (!seconds) return NONE;
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return today ? clock(date) : `${day} ${clock(date)}`;
}

export function clock(date) {
  return new Date(date).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function logTime(stamp) {
  const date = new Date(stamp);
  if (Number.isNaN(date.getTime())) return "";
  const digits = (value, count = 2) => String(value).padStart(count, "0");
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map((value) => digits(value)).join(":");
  return `${clock}.${digits(date.getMilliseconds(), 3)}`;
}

const NAMES = {
  train_loss: "train loss",
  val_loss: "validation loss",
  samples_per_second: "samples/s",
  tokens_per_second: "tokens/s",
  flops_per_second: "FLOP/s",
  mfu: "MFU",
  lr: "learning rate",
  grad_norm: "gradient norm",
  step_seconds: "seconds per step",
};

export function metricName(name) {
  return NAMES[name] || name.replaceAll("_", " ");
}

export function metricValue(name, number) {
  if (Number.isNaN(number)) return "NaN";
  if (name === "mfu") return percent(number);
  if (name.endsWith("_seconds")) return stepTime(number);
  if (name.endsWith("per_second")) return amount(number);
  return value(number);
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
