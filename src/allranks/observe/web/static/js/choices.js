// What was chosen in the plots, kept for the next visit.

export function choices() {
  const usual = { log: false, smooth: 0, metric: "", heat: "" };
  let chosen = {};
  try {
    chosen = JSON.parse(localStorage.getItem("allranks-plots") || "{}");
  } catch { /* storage is off, or not ours */ }
  return Object.assign({ ...usual, ...chosen }, {
    set(name, value) {
      this[name] = value;
      const { set, ...rest } = this;
      try { localStorage.setItem("allranks-plots", JSON.stringify(rest)); } catch { /* storage is off */ }
    },
  });
}
