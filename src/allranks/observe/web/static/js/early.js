// Runs before the first paint and before the modules: the theme, and the first question to the server.
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";
  try { chosen = localStorage.getItem("allranks-theme") || "auto"; } catch { /* storage is off */ }
  function apply() {
    const theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
    document.documentElement.dataset.theme = theme;
    document.documentElement.dataset.chosen = chosen;
    window.dispatchEvent(new Event("themechange"));
  }
  dark.addEventListener("change", apply);
  window.allranksTheme = function (next) {
    chosen = next;
    try { localStorage.setItem("allranks-theme", next); } catch { /* storage is off */ }
    apply();
  };
  apply();
  const run = location.hash.match(/^#\/run\/([^/?]+)(?:\/[^?]*)?(?:\?(.*))?$/);
  let first = "/api/runs?limit=100";
  try {
    if (run) first = `/api/runs/${encodeURIComponent(decodeURIComponent(run[1]))}`;
  } catch { /* not an address of ours */ }
  const task = run && new URLSearchParams(run[2]).get("task");
  if (task) first += `?task=${encodeURIComponent(task)}`;
  const answer = fetch(first, { cache: "no-store", signal: AbortSignal.timeout(15_000) });
  answer.catch(() => {}); // whoever takes it over sees the failure
  window.allranksFirst = { address: first, answer };
})();
