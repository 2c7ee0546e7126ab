// Text with terminal colours → pieces with a class. Every other control character is dropped.

const ESCAPE = /\x1b(?:\[([0-9;:]*)([A-Za-z])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;

export function pieces(text) {
  if (!text.includes("\x1b")) return [{ text: text.replace(CONTROL, ""), style: "" }];
  const found = [];
  let style = { colour: "", bold: false, dim: false }, last = 0;
  for (const match of text.matchAll(ESCAPE)) {
    push(found, text.slice(last, match.index), style);
    if (match[2] === "m") style = changed(style, match[1]);
    last = match.index + match[0].length;
  }
  push(found, text.slice(last), style);
  return found;
}

function push(found, text, style) {
  const clean = text.replace(CONTROL, "");
  const names = [
    style.colour && `ansi-${style.colour}`,
    style.bold && "ansi-bold",
    style.dim && "ansi-dim",
  ].filter(Boolean).join(" ");
  if (clean) found.push({ text: clean, style: names });
}

function changed(style, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  let next = { ...style };
  for (let i = 0; i < numbers.length; i += 1) {
    const code = numbers[i];
    if (code === 0) next = { colour: "", bold: false, dim: false };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 39) next.colour = "";
    else if (code === 38 || code === 48) i += numbers[i + 1] === 5 ? 2 : 4; // a palette of its own
    else if (code >= 30 && code <= 37) next.colour = String(code - 30);
    else if (code >= 90 && code <= 97) next.colour = String(code - 90);
  }
  return next;
}
