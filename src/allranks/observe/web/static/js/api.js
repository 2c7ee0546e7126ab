// Questions to the server. An answer that did not change since the last time is not sent again.

import { clock } from "./format.js";

const known = new Map();
const MOST = 24, LONG = 15_000; // answers kept; milliseconds after which one is given up
let told = "", heard = Date.now();

export class Refused extends Error {}

export async function get(path, params = {}, signal = undefined) {
  const given = Object.entries(params).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const search = new URLSearchParams(given.filter(([, value]) => (value ?? "") !== ""));
  const address = search.size ? `${path}?${search}` : path;
  const before = known.get(address);
  const answer = await ask(address, before ? { "If-None-Match": before.tag } : {}, signal);
  if (answer.status === 304 && before) return { data: before.data, changed: false };
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Refused(error || `The server answered ${answer.status}.`);
  }
  const data = await answer.json();
  remember(address, { tag: answer.headers.get("ETag"), data });
  return { data, changed: true };
}

async function ask(address, headers, signal) {
  let answer;
  const ends = AbortSignal.any([AbortSignal.timeout(LONG), ...(signal ? [signal] : [])]);
  try {
    answer = await (early(address) || fetch(address, { headers, signal: ends, cache: "no-store" }));
  } catch (error) {
    if (error.name === "TimeoutError") say(`No answer since ${clock(heard)}.`);
    else if (error.name !== "AbortError") say("The server is gone. Start it again: allranks web");
    throw error;
  }
  heard = Date.now();
  if (answer.status === 401) {
    say("Another server is here now: open the address that it printed.");
    throw new Refused("This page belongs to a server that has ended.");
  }
  say("");
  return answer;
}

// The first question was sent before this file was here.
function early(address) {
  const first = window.allranksFirst;
  if (first?.address !== address) return null;
  window.allranksFirst = null;
  return first.answer;
}

function remember(address, answer) {
  known.delete(address);
  known.set(address, answer);
  if (known.size > MOST) known.delete(known.keys().next().value);
}

function say(text) {
  if (text === told) return;
  told = text;
  const place = document.getElementById("link-state");
  place.textContent = text;
  place.classList.toggle("lost", Boolean(text));
}

// Calls ``look`` now and every two seconds while the page is seen; slower while it fails.
export function follow(look, every = 2000) {
  let timer = 0, ended = false, busy = false, failures = 0;
  async function turn() {
    clearTimeout(timer);
    if (ended || busy || document.hidden) return;
    busy = true;
    try {
      await look();
      failures = 0;
    } catch (error) {
      if (error.name !== "AbortError") failures += 1;
    }
    busy = false;
    if (!ended) timer = setTimeout(turn, every * Math.min(1 + failures, 8));
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return {
    now: turn,
    stop() {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", turn);
    },
  };
}
