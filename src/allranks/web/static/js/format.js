// Numbers and times as people read them.

const NONE = "–";

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e7)) {
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  }
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const shown = size >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(digits)));
  return size >= 1000 ? Number(shown).toLocaleString("en-US") : shown;
}

export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  for (const [size, unit] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return trim(value / size) + unit;
  }
  return Math.abs(value) < 1 && value !== 0 ? String(Number(value.toPrecision(2))) : trim(value);
}

function trim(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(digits)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return `${trim(value)} ${units[place]}`;
}

export function rate(value) {
  return value === null || value === undefined ? NONE : `${bytes(value)}/s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const whole = Math.max(Math.round(seconds), 0);
  const [days, hours, minutes] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
  ];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  if (minutes) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${whole} s`;
}

// For places where a second more or less does not matter.
export function rough(seconds) {
  if (seconds === null || seconds === undefined || seconds < 600 || seconds >= 3600) return duration(seconds);
  return `${Math.round(seconds / 60)} min`;
}

export function small(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds === 0) return "0";
  if (seconds >= 100) return duration(seconds);
  if (seconds >= 1) return `${trim(seconds)} s`;
  return seconds >= 1e-3 ? `${trim(seconds * 1e3)} ms` : `${trim(seconds * 1e6)} µs`;
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

export function metricValue(name, value) {
  if (name === "mfu") return percent(value, 1);
  if (name.endsWith("_seconds")) return small(value);
  if (name.endsWith("per_second")) return short(value);
  return number(value);
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}
