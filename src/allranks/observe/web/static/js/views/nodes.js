// The nodes of a run in their latest samples.
import { h } from "../dom.js";
import { amount, percent, plural, rate, size, span } from "../format.js";
import { card, table } from "../parts.js";

const SHOWN = 64;

export function nodesCard(look) {
  const gpus = look.nodes.some((node) => node.gpus.length);
  const heads = [
    ["Node"],
    ["CPUs busy", "number"],
    ["Memory", "number"],
    ["Network in", "number"],
    ["out", "number"],
    ["Disk read", "number"],
    ["write", "number"],
  ];
  if (gpus) heads.push(["GPUs: use, memory", "gpus"]);
  const rows = look.nodes.slice(0, SHOWN).map((node) => [
    node.host || `node ${node.node}`,
    node.cpu === null ? "–" : `${amount(node.cpu)}${node.cpus ? ` of ${node.cpus}` : ""}`,
    node.memory_limit ? `${size(node.memory)} of ${size(node.memory_limit)}` : size(node.memory),
    rate(node.net_in), rate(node.net_out), rate(node.disk_read), rate(node.disk_write),
    ...(gpus ? [h("ul", { class: "gpus" }, node.gpus.map(gpuNow))] : []),
  ]);
  const oldest = Math.min(...look.nodes.map((node) => node.time));
  const age = look.time - oldest > 60 ? `Sampled ${span(look.time - oldest)} ago.` : "";
  const more = look.nodes.length > SHOWN ? `The first ${SHOWN} of ${plural(look.nodes.length, "node")}.` : "";
  return card("Nodes", h("span", { class: "note" }, [age, more].filter(Boolean).join(" ")), table(heads, rows));
}

function gpuNow(gpu) {
  const words = [
    gpu.name || `GPU ${gpu.gpu}`,
    `use ${percent(gpu.use)}`,
    `memory ${size(gpu.memory)} of ${size(gpu.memory_total)}`,
    gpu.power === null ? "" : `${amount(gpu.power)} W`,
    gpu.temperature === null ? "" : `${amount(gpu.temperature)} °C`,
  ].filter(Boolean).join(", ");
  const share = gpu.memory_total && gpu.memory !== null ? gpu.memory / gpu.memory_total : null;
  const memory = share === null ? size(gpu.memory) : percent(share);
  return h("li", { title: words, "aria-label": words },
    h("span", { class: "meter", "--share": `${Math.round((gpu.use || 0) * 100)}%` }),
    percent(gpu.use), h("span", { class: "note" }, memory));
}
