// Where things are.

export function address(id, tab = "", query = "") {
  return `#/run/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}${query ? `?${query}` : ""}`;
}

// A page of its own, which can be kept and handed on.
export function reportAddress(id, task) {
  return `/runs/${encodeURIComponent(id)}/report${task ? `?task=${task}` : ""}`;
}
