// Elements from values. Text enters the page here and only as text: no string is ever read as HTML.

export function h(tag, props, ...children) {
  return finish(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return finish(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function finish(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  return put(element, ...children);
}

export function put(element, ...children) {
  element.append(...children.flat(Infinity).filter(worth).map(node));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(worth).map(node));
  return element;
}

// As fill, for what is shown anew while someone reads: the scrolled stay scrolled, the focus stays.
export function refill(element, ...children) {
  const scrolled = () => [...element.querySelectorAll(".scroll, pre")];
  const reached = () => [...element.querySelectorAll("a, button, input, select, [tabindex]")];
  const places = scrolled().map((box) => [box.scrollLeft, box.scrollTop]);
  const focused = reached().indexOf(document.activeElement);
  fill(element, ...children);
  scrolled().forEach((box, i) => { [box.scrollLeft, box.scrollTop] = places[i] || [0, 0]; });
  if (focused >= 0) reached()[focused]?.focus({ preventScroll: true });
  return element;
}

export function setText(element, text) {
  const now = String(text ?? "");
  if (element.textContent !== now) element.textContent = now;
}

function worth(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

export function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Whether a key goes into a field, so that it is none of ours.
export function typing({ target }) {
  const fields = "input:not([type=checkbox]):not([type=range]), select, textarea";
  return target instanceof HTMLElement && target.matches(fields);
}
