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
  const run = location.hash.match(/^#\/run\/([^/?]+)/);
  const first = run ? `/api/runs/${encodeURIComponent(decodeURIComponent(run[1]))}` : "/api/runs?limit=100";
  const answer = fetch(first, { cache: "no-store" });
  answer.catch(() => {}); // whoever takes it over sees the failure
  window.allranksFirst = { address: first, answer };
})();
