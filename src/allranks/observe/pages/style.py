"""The style sheet of HTML pages: light and dark, screen and print, without a script or another file."""

from __future__ import annotations

from allranks.core.plots.svg import on_dark

_CSS = """
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#1f2937;--soft:#6b7280;--line:#e5e7eb;
--good:#0f7b54;--fair:#a35c00;--bad:#b42318;--plain:#475569;--accent:#0072b2;--code:#f1f3f6;
--plot-back:transparent}
@media(prefers-color-scheme:dark){:root{--ground:#0b1220;--card:#131c2e;--ink:#e5e7eb;--soft:#9ca3af;
--line:#28344b;--good:#4cc595;--fair:#f0b04f;--bad:#ff8478;--plain:#a3b0c2;--accent:#4da6e0;--code:#0b1220;
DARK;--plot-back:transparent}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);line-height:1.5;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:27px;margin:0;line-height:1.2;overflow-wrap:anywhere}
h2{font-size:18px;margin:34px 0 12px}
h3{font-size:15px;margin:0 0 8px}
p{margin:6px 0}
.soft{color:var(--soft)}
.badge{display:inline-block;padding:2px 11px;border-radius:999px;font-size:13px;font-weight:600;
vertical-align:5px;margin-left:10px;border:1px solid currentColor}
.good{color:var(--good)}.fair{color:var(--fair)}.bad{color:var(--bad)}.plain{color:var(--plain)}
.verdict{font-size:17px;margin:14px 0 18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(180px,45%),1fr));gap:12px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 14px;border-left:4px solid var(--line)}
.tile.good{border-left-color:var(--good)}.tile.fair{border-left-color:var(--fair)}
.tile.bad{border-left-color:var(--bad)}
.tile b{display:block;font-size:21px;line-height:1.3;color:var(--ink);font-weight:650;
overflow-wrap:anywhere}
.tile.good b{color:var(--good)}.tile.fair b{color:var(--fair)}.tile.bad b{color:var(--bad)}
.tile span{color:var(--soft);font-size:13px;display:block}
.card{padding:16px 18px;margin:12px 0}
.two{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:16px;align-items:start}
.two .card{margin:0 0 14px}
.use{display:grid;grid-template-columns:136px 1fr 175px;gap:4px 14px;align-items:center;margin:12px 0}
.bar{height:14px;border-radius:7px;background:var(--line);overflow:hidden;position:relative}
.bar i{display:block;height:100%;background:var(--accent);border-radius:7px 0 0 7px;min-width:2px}
.use small{color:var(--soft);display:block;line-height:1.35}
.advice{border-left:5px solid var(--plain);padding:12px 16px;margin:10px 0;background:var(--card);
border-radius:8px;border-top:1px solid var(--line);border-right:1px solid var(--line);
border-bottom:1px solid var(--line)}
.advice.error{border-left-color:var(--bad)}.advice.warning{border-left-color:var(--fair)}
.advice.note{border-left-color:var(--accent)}
.advice b{font-size:12px;text-transform:uppercase;letter-spacing:.04em}
.error>b{color:var(--bad)}.warning>b{color:var(--fair)}.note>b{color:var(--accent)}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--code);
border-radius:6px}
code{padding:2px 7px;overflow-wrap:anywhere}
pre{padding:12px 14px;overflow:auto;margin:8px 0;white-space:pre-wrap;overflow-wrap:anywhere}
.stack{display:flex;height:26px;border-radius:7px;overflow:hidden;margin:6px 0 12px}
.stack i{display:block;min-width:1px}
.keys{display:flex;flex-wrap:wrap;gap:4px 20px;font-size:13px}
.keys i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:14px}
.plots .card{margin:0;padding:8px 6px 2px}
.plots svg{display:block;width:100%;height:auto}
.wide{grid-column:1/-1}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:600;font-size:13px}
th,td{padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
.facts td{overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
.num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}
.scroll table{min-width:600px}
.facts td:first-child{color:var(--soft);white-space:nowrap;width:1%;padding-right:20px}
summary{cursor:pointer;font-weight:600;padding:2px 0}
footer{margin-top:36px;color:var(--soft);font-size:13px}
@media(max-width:760px){.two{grid-template-columns:minmax(0,1fr)}.use{grid-template-columns:1fr}
.wide{overflow-x:auto}.plots .wide svg{width:900px}}
@media print{:root{--ground:#fff;--card:#fff}body{font-size:12px}main{max-width:none;padding:0}
.card,.tile,.advice,svg{break-inside:avoid}h2{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def css() -> str:
    """Return the style sheet of a page."""
    return _CSS.strip().replace("DARK", on_dark())
