// Two answers in a few lines each, for the overview: who gives way to whom, and what more memory would buy.

import { read } from "./api.js";
import { SHORT_TIERS, best, fits, leftOutWords, points, signed } from "./change.js";
import { h, put } from "./dom.js";
import { Live } from "./live.js";
import { blank, section, tellFailure, withCode } from "./parts.js";
import { count, exact, plural } from "./words.js";

const LINES = 5;
const LOOKED_AT = 500; // events; what the API gives at most
const TENANTS_ASKED = 50; // each takes the coordinator milliseconds

export function suffering() {
  const lines = h("div");
  const failing = h("div");
  const live = new Live({
    every: 5000,
    load: (signal) => read(`v1/evictions?what=evicted&what=refused&limit=${LOOKED_AT}`, { signal }),
    show: ({ events }) => {
      put(failing);
      showPairs(lines, pairs(events), events.length);
    },
    fail: (error) => tellFailure(failing, error),
  });
  return {
    live,
    node: section("Who gives way, and because of whom", failing, lines, link("evictions", "Every eviction, and why")),
  };
}

/** Of the newest events: whose blocks left for somebody else, and who was refused. */
export function pairs(events) {
  const sums = new Map();
  for (const { what, tenant, blocks, detail } of events) {
    const other = what === "refused" ? "" : detail.for_tenant;
    if (what !== "refused" && (!other || other === tenant)) continue; // it made room for itself
    const key = JSON.stringify([tenant, other, what]);
    const sum = sums.get(key) ?? { tenant, other, what, blocks: 0 };
    sum.blocks += blocks;
    sums.set(key, sum);
  }
  return [...sums.values()].sort((a, b) => b.blocks - a.blocks || (a.tenant < b.tenant ? -1 : 1));
}

function showPairs(place, found, nEvents) {
  if (!found.length) {
    put(
      place,
      blank(
        nEvents
          ? "Nobody had to give way to another tenant of late."
          : "No block had to leave, and none was refused.",
        null,
        nEvents ? "Blocks that left made room for their own tenant's." : null,
      ),
    );
    return;
  }
  const most = found[0].blocks;
  put(
    place,
    h(
      "div",
      { class: "lines is-pairs" },
      found
        .slice(0, LINES)
        .map(({ tenant, other, what, blocks }) =>
          h(
            "div",
            { class: "line is-pair", data: { tenant, other, what, blocks } },
            h("span", { class: "cut", title: tenant }, tenant),
            h(
              "span",
              { class: "soft cut", title: other },
              what === "refused" ? "was refused room" : "gave way to ",
              other ? h("span", { class: "ink" }, other) : null,
            ),
            h(
              "span",
              { class: "meter", "aria-hidden": "true" },
              h("span", { class: "fill", style: { width: `${(100 * blocks) / most}%` } }),
            ),
            h("span", { class: "number soft", title: exact(blocks) }, plural(blocks, "block")),
          ),
        ),
    ),
    h("p", { class: "soft more" }, `Of the newest ${count(nEvents)} that left or were refused.`),
  );
}

export function buying() {
  const lines = h("div");
  const rest = h("p", { class: "soft" });
  const failing = h("div");
  const live = new Live({
    every: 15000,
    load: (signal) => read(`v1/capacity?limit=${TENANTS_ASKED}`, { signal }),
    show: ({ tenants, left_out: leftOut }) => {
      put(failing);
      showChanges(lines, tenants);
      put(rest, leftOut ? withCode(leftOutWords(leftOut)) : null);
    },
    fail: (error) => tellFailure(failing, error),
  });
  return { live, node: section("What more memory would buy", failing, lines, rest, link("capacity", "All curves")) };
}

function showChanges(place, tenants) {
  const drawn = tenants.filter((each) => each.nodes > 0);
  const believed = drawn.filter(fits);
  const gains = believed
    .map((each) => ({ tenant: each.tenant, change: best(each) }))
    .filter(({ change }) => change !== null)
    .sort((a, b) => b.change.tokens_per_hour - a.change.tokens_per_hour);
  if (!gains.length) {
    put(
      place,
      !drawn.length
        ? blank("No tenant has looked anything up of late.")
        : !believed.length
          ? blank("Too little was sampled yet: the curves are far from what was measured.")
          : blank("Nothing now: what is asked for again is found, or was never stored."),
    );
    return;
  }
  put(
    place,
    h(
      "div",
      { class: "lines is-gains" },
      gains
        .slice(0, LINES)
        .map(({ tenant, change }) =>
          h(
            "div",
            { class: "line is-gain", data: { tenant, tier: change.tier, more: change.more_bytes } },
            h("span", { class: "cut", title: tenant }, tenant),
            h("span", { class: "soft" }, `${signed(change.more_bytes)} ${SHORT_TIERS[change.tier]}`),
            h("span", {}, points(change.points)),
            h(
              "span",
              { class: "number soft", title: exact(Math.round(change.tokens_per_hour)) },
              `${count(change.tokens_per_hour)} tokens/h`,
            ),
          ),
        ),
    ),
  );
}

function link(page, words) {
  return h("a", { class: "more", href: page, "data-page": page }, words);
}
