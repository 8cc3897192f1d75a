// The frame of all pages: which one is shown, whether its numbers are current, how it looks.

import { Unreachable, caller, read } from "./api.js";
import { attribute, h, put, say } from "./dom.js";
import { Live, moment, secondsSince } from "./live.js";
import { problem } from "./parts.js";
import { ago } from "./words.js";

const PAGES = {
  "": () => import("./pages/overview.js"),
  tenants: () => import("./pages/tenants.js"),
  nodes: () => import("./pages/nodes.js"),
  prefixes: () => import("./pages/prefixes.js"),
  evictions: () => import("./pages/evictions.js"),
  capacity: () => import("./pages/capacity.js"),
};

const STALE_AFTER_S = 10;

const main = document.querySelector("main");
const links = [...document.querySelectorAll("nav a[data-page]")];
const freshness = document.getElementById("freshness");
const banner = document.getElementById("banner");
// What is spoken when it changes, and beside it an age that changes every second.
const [state, stateAge] = freshness.children;
const [told, toldAge] = banner.children;

let current = null; // {name, stop}
let heard = null; // {when, stats} of the last answer
let trouble = "";

/** What a page is given: where to put itself, and the stats that all of them share. */
const shared = {
  caller,
  listeners: new Set(),
  get stats() {
    return heard?.stats ?? null;
  },
  /** Age in seconds of the numbers that the coordinator last gave. */
  get age() {
    return heard ? heard.stats.age_s + secondsSince(heard.when) : null;
  },
  onStats(listener) {
    this.listeners.add(listener);
    if (heard) listener(heard.stats);
    return () => this.listeners.delete(listener);
  },
};

const pulse = new Live({
  every: 1000,
  load: (signal) => read("v1/stats", { signal }),
  show(stats) {
    heard = { when: moment(), stats };
    trouble = "";
    tellAge();
    for (const listener of [...shared.listeners]) listener(stats);
  },
  fail(error) {
    trouble =
      error instanceof Unreachable ? "The coordinator does not answer. Trying again every second." : error.message;
    tellAge();
  },
});

function tellAge() {
  const age = shared.age;
  const stats = shared.stats;
  const isStale = stats !== null && (stats.stale || age > STALE_AFTER_S || trouble !== "");
  if (stats) {
    const { alive, known } = stats.nodes;
    const lost = known > alive ? `, ${known - alive} lost` : "";
    say(state, `${isStale ? "stale" : "live"} · ${alive} ${alive === 1 ? "node" : "nodes"}${lost}`);
    say(stateAge, isStale ? ` · ${ago(age)}` : "");
    attribute(freshness, "class", isStale ? "fresh is-stale" : "fresh is-live");
  }
  say(told, isStale || trouble ? reason(stats) : "");
  say(toldAge, isStale ? ` These numbers are from ${ago(age)}.` : "");
  banner.classList.toggle("is-told", told.textContent !== "");
}

function reason(stats) {
  if (trouble) return trouble;
  return stats.stale
    ? "Redis does not answer the coordinator; engines go on without it."
    : "No newer numbers came for some time.";
}

function pageName() {
  const name = location.pathname.slice(location.pathname.lastIndexOf("/") + 1);
  return Object.hasOwn(PAGES, name) ? name : "";
}

async function show({ focus = false } = {}) {
  const name = pageName();
  for (const link of links) attribute(link, "aria-current", link.dataset.page === name ? "page" : null);
  const before = current;
  const mine = { name, stop: () => {} };
  current = mine;
  before?.stop();
  let page;
  try {
    page = await PAGES[name]();
  } catch {
    put(main, problem("This page could not be loaded: the coordinator does not answer. Reload to try again."));
    return;
  }
  if (current !== mine) return;
  document.title = `${page.title} · Tiered`;
  const heading = h("h1", { tabindex: "-1" }, page.title);
  const body = h("div", { class: "page" });
  put(main, h("header", { class: "lead" }, heading, h("p", { class: "soft" }, page.answers)), body);
  mine.stop = page.open(body, shared) ?? (() => {});
  if (focus) heading.focus({ preventScroll: true });
  scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-page]");
  if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  if (link.href !== location.href) history.pushState(null, "", link.href);
  void show({ focus: true });
});
addEventListener("popstate", () => void show());

const theme = document.getElementById("theme");

function themeNow() {
  return document.documentElement.dataset.theme ?? "system";
}

function tellTheme() {
  say(theme, { light: "☀ Light", dark: "☾ Dark", system: "◐ System" }[themeNow()]);
}

theme.addEventListener("click", () => {
  const next = { system: "dark", dark: "light", light: "system" }[themeNow()];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("tiered-theme");
    else localStorage.setItem("tiered-theme", next);
  } catch {
    // Storage is switched off: the choice holds until the page is left.
  }
  tellTheme();
});

tellTheme();
setInterval(tellAge, 1000);
void show();
pulse.start();
