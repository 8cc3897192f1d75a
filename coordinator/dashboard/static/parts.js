// Pieces that several pages are made of.

import { Unreachable } from "./api.js";
import { freshId, h, put } from "./dom.js";

export function section(title, ...children) {
  const id = freshId("title");
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}

/** What stands between backticks is typed somewhere. */
export function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

/** What is not there, why, and what to type. */
export function blank(text, command = null, more = null) {
  return h(
    "div",
    { class: "blank-text" },
    h("p", {}, withCode(text)),
    command ? h("pre", {}, h("code", {}, command)) : null,
    more ? h("p", { class: "soft" }, withCode(more)) : null,
  );
}

export const NO_WORKER = [
  "No worker has joined.",
  "tiered-worker --redis-url redis://HOST:PORT",
  "Or start a whole cluster on this machine with `tiered up`.",
];

const SIGNS = { alarm: "✕", warning: "!", note: "i", good: "✓" };

/** A state by sign and word; the colour only repeats it. */
export function state(level, word) {
  return h(
    "span",
    { class: `state is-${level}` },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[level]),
    word,
  );
}

/** A level and a word. is_late: it has not renewed its lease for long. */
export function nodeState(node) {
  if (!node.alive) return ["alarm", "lost"];
  if (node.is_late) return ["warning", "late"];
  if (node.drain.state !== "none") return [node.drain.stuck_blocks ? "warning" : "note", node.drain.state];
  if (node.traffic.breaker_open) return ["alarm", "Redis breaker open"];
  return ["good", "alive"];
}

export function problem(message) {
  return h("p", { class: "problem", role: "alert" }, message);
}

/** Where a page says why it has nothing newer. That nobody answers, the frame says already. */
export function tellFailure(place, error) {
  put(place, error instanceof Unreachable ? null : problem(error.message));
}

export function tag(word, title = null) {
  return h("span", { class: "tag", title }, word);
}

export function shortHash(hash) {
  return h("code", { class: "hash", title: hash }, hash.slice(0, 12));
}

export function fact(label, value, title = null) {
  return [h("dt", {}, label), h("dd", { title }, value)];
}
