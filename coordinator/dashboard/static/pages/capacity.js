// What more memory would buy each tenant: its hit ratio by bytes, and what a change of a tier's size would bring.

import { read } from "../api.js";
import { TIERS, best, fits, isNothing, leftOutWords, points, signed } from "../change.js";
import { curve } from "../charts.js";
import { attribute, freshId, h, put, say } from "../dom.js";
import { Live } from "../live.js";
import { blank, fact, tellFailure, withCode } from "../parts.js";
import { bytes, count, duration, exact, exactBytes, none } from "../words.js";

export const title = "Capacity";
export const answers = "What would more memory buy, and for whom?";

const SHOWN_FIRST = 12;
const ALL = 1000; // what the API gives at most; each tenant takes the coordinator milliseconds

export function open(body) {
  const failing = h("div");
  const cards = h("div", { class: "columns" });
  const shown = new Map();
  let limit = SHOWN_FIRST;
  const more = h("button", { type: "button", class: "quiet", hidden: true });
  more.addEventListener("click", () => {
    limit = ALL;
    live.now();
  });
  const rest = h("p", { class: "soft more" });
  const ask = { tier: "redis", more: "" };
  const { node: form, fail } = askForm(ask, () => live.now());
  const nothing = h(
    "section",
    { class: "card", hidden: true },
    blank(
      "No tenant has looked anything up of late.",
      null,
      "Curves are drawn from a sample of the lookups; the first appear some seconds after engines begin to ask.",
    ),
  );
  put(body, failing, form, nothing, cards, h("div", {}, more, rest));

  const live = new Live({
    every: 5000,
    load: (signal) => {
      const query = new URLSearchParams(ask.more ? { more_bytes: ask.more, tier: ask.tier } : {});
      if (limit === ALL) query.set("limit", String(ALL));
      return read(`v1/capacity?${query}`, { signal });
    },
    show: ({ tenants, left_out: leftOut }) => {
      put(failing);
      fail("");
      const drawn = tenants
        .filter((each) => each.nodes > 0)
        .sort((a, b) => most(b) - most(a) || b.asked_tokens_per_hour - a.asked_tokens_per_hour);
      nothing.hidden = drawn.length > 0;
      form.hidden = drawn.length === 0;
      const listed = drawn.slice(0, limit);
      const names = new Set(listed.map((each) => each.tenant));
      for (const [name, card] of [...shown]) {
        if (names.has(name)) continue;
        card.node.remove();
        shown.delete(name);
      }
      listed.forEach((each, index) => {
        if (!shown.has(each.tenant)) shown.set(each.tenant, card());
        const one = shown.get(each.tenant);
        one.update(each, ask.more !== "");
        if (cards.children[index] !== one.node) cards.insertBefore(one.node, cards.children[index] ?? null);
      });
      more.hidden = limit === ALL || drawn.length + leftOut <= limit;
      say(more, `Show all ${exact(drawn.length + leftOut)} tenants`);
      put(rest, limit === ALL && leftOut ? withCode(leftOutWords(leftOut)) : null);
    },
    fail: (error) => {
      if (error.field === "more_bytes") fail(error.message);
      else tellFailure(failing, error);
    },
  }).start();
  return () => live.stop();
}

/** The most that any of the looked-at changes brings; those who gain most come first. */
function most(tenant) {
  return Math.max(0, ...tenant.what_if.map((each) => each.tokens_per_hour));
}

function askForm(ask, changed) {
  const ids = [freshId("more"), freshId("tier")];
  const fault = h("span", { class: "problem", id: `${ids[0]}-fault`, role: "alert" });
  const input = h("input", {
    id: ids[0],
    placeholder: "such as 10 GiB or -512 MiB",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": fault.id,
  });
  const tier = h(
    "select",
    { id: ids[1] },
    Object.entries(TIERS).map(([value, label]) => h("option", { value }, label)),
  );
  tier.value = ask.tier;
  const submit = () => {
    ask.more = input.value.replaceAll(/\s+/g, "");
    ask.tier = tier.value;
    changed();
  };
  tier.addEventListener("change", submit);
  const node = h(
    "form",
    {
      class: "card what-if",
      "aria-label": "Look at a change",
      on: {
        submit: (event) => {
          event.preventDefault();
          submit();
        },
      },
    },
    h("label", { for: ids[0] }, "What if every tenant had"),
    input,
    h("label", { for: ids[1] }, "more of"),
    tier,
    h("button", { type: "submit", class: "act" }, "Look"),
    fault,
  );
  const fail = (message) => {
    say(fault, message);
    attribute(input, "aria-invalid", message ? "true" : null);
  };
  return { node, fail };
}

function ratio(value) {
  return value === null || value === undefined ? none : `${(100 * value).toFixed(1)} %`;
}

function card() {
  const name = h("h2", { class: "cut" });
  const answer = h("p", { class: "answer" });
  const picture = h("div");
  const facts = h("dl", { class: "facts" });
  const changes = h("tbody");
  const table = h(
    "table",
    { class: "runs" },
    h("caption", { class: "unseen" }, "What a change would bring"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "Change"),
        h("th", { scope: "col", class: "number" }, "Hit ratio"),
        h("th", { scope: "col", class: "number" }, "Found more"),
        h("th", { scope: "col", class: "number" }, "Prefill spared"),
      ),
    ),
    changes,
  );
  const node = h(
    "section",
    { class: "card w6" },
    name,
    answer,
    picture,
    h("div", { class: "what-would" }, facts, table),
  );
  let sign = "";

  const update = (tenant, isAsked) => {
    attribute(node, "data-tenant", tenant.tenant);
    say(name, tenant.tenant);
    name.title = tenant.tenant;
    const now = JSON.stringify([
      tenant.curve,
      tenant.room_bytes,
      tenant.what_if,
      tenant.measured,
      tenant.predicted,
      isAsked,
    ]);
    if (now === sign) return;
    sign = now;
    say(answer, sentence(tenant, isAsked));
    const at = tenant.curve.map((point) => [point.bytes, point.hit_ratio]);
    const widest = 1.05 * Math.max(tenant.room_bytes, ...at.map(([x]) => x), 1);
    if (at.length && at.at(-1)[0] < widest) at.push([widest, at.at(-1)[1]]);
    put(
      picture,
      curve({
        points: [[0, 0], ...at],
        xMax: widest,
        xWords: bytes,
        mark: { x: tenant.room_bytes, label: `now ${bytes(tenant.room_bytes)}` },
        label: `Hit ratio by bytes. With the ${bytes(tenant.room_bytes)} there are now: ${ratio(tenant.predicted?.hit_ratio)}. With ${bytes(widest)}: ${ratio(at.at(-1)?.[1])}.`,
      }),
      h("p", { class: "soft readout" }, "Hit ratio by bytes in all tiers together"),
    );
    put(
      facts,
      fact(
        "Hit ratio",
        `${ratio(tenant.measured?.hit_ratio)} measured, ${ratio(tenant.predicted?.hit_ratio)} by the curve`,
      ),
      fact("Asked", `${count(tenant.asked_tokens_per_hour)} tokens an hour`),
      fact("Hot", roomWords(tenant.hot), exactBytes(tenant.hot.used_bytes)),
      fact("Redis", roomWords(tenant.redis), exactBytes(tenant.redis.used_bytes)),
      fact(
        "Drawn from",
        `${exact(tenant.sampled_blocks)} blocks sampled at ${exact(tenant.nodes)} ${tenant.nodes === 1 ? "node" : "nodes"} in ${duration(tenant.since_s)}`,
      ),
    );
    const listed = [...tenant.what_if].sort((a, b) =>
      a.tier < b.tier ? -1 : a.tier > b.tier ? 1 : a.more_bytes - b.more_bytes,
    );
    put(
      changes,
      listed.map((each) =>
        h(
          "tr",
          { data: { tier: each.tier, more: each.more_bytes, points: each.points } },
          h(
            "th",
            { scope: "row", title: `${signed(each.more_bytes)}, to ${bytes(each.bytes)}` },
            `${signed(each.more_bytes)} ${TIERS[each.tier]}`,
          ),
          h("td", { class: "number", data: { label: "Hit ratio" } }, points(each.points)),
          h(
            "td",
            { class: "number", data: { label: "Found more" } },
            `${count(Math.abs(each.tokens_per_hour))} tokens/h`,
          ),
          h(
            "td",
            { class: "number", data: { label: "Prefill spared" } },
            each.prefill_s_per_hour === null ? none : `${duration(Math.abs(each.prefill_s_per_hour))}/h`,
          ),
        ),
      ),
    );
    table.hidden = listed.every((each) => each.points === 0);
  };
  return { node, update };
}

function roomWords(room) {
  return `${bytes(room.used_bytes)} ${room.limit_bytes === null ? "used, no limit" : `of ${bytes(room.limit_bytes)}`}`;
}

function sentence(tenant, isAsked) {
  if (!fits(tenant)) return "Too little was sampled yet: the curve is far from what was measured";
  if (!tenant.what_if.length) return "It holds nothing yet that could grow";
  const chosen = isAsked ? tenant.what_if.at(-1) : best(tenant); // what somebody asked for comes last
  if (chosen === null) return "More memory would buy nothing now";
  if (isNothing(chosen)) return `${signed(chosen.more_bytes)} ${TIERS[chosen.tier]} would change nothing`;
  return `${signed(chosen.more_bytes)} ${TIERS[chosen.tier]} for ${tenant.tenant} = ${points(chosen.points)}`;
}
