// Who uses what, who gave to whom, who was refused; and what each was promised.

import { caller, read } from "../api.js";
import { meter, stack, tokenParts } from "../charts.js";
import { h, put } from "../dom.js";
import { Live } from "../live.js";
import { blank, fact, tag, tellFailure } from "../parts.js";
import { quotaForm } from "../quota.js";
import { Table } from "../table.js";
import { TIERS, bytes, count, exact, exactBytes, found, none, percent } from "../words.js";

export const title = "Tenants";
export const answers = "Who uses what, who suffers, and because of whom?";

export function open(body, shared) {
  const failing = h("div");
  const table = new Table({
    what: "tenants",
    rowKey: (row) => row.policy.tenant,
    filterText: (row) => row.policy.tenant,
    sort: { key: "asked", falling: true },
    empty: blank("No tenant is known.", "tiered tenants create --tenant acme --redis-limit 1GiB"),
    columns: COLUMNS,
    detail: (row) => detail(row, () => live.now()),
  });
  put(body, failing, h("section", { class: "card", "aria-label": "Tenants" }, table.node));
  const live = new Live({
    every: 2000,
    load: (signal) => read("v1/tenants", { signal }),
    show: ({ tenants }) => {
      put(failing);
      for (const tenant of tenants) tenant.n_nodes = shared.stats?.nodes.alive ?? 0;
      table.show(tenants);
    },
    fail: (error) => tellFailure(failing, error),
  }).start();
  return () => {
    live.stop();
    table.stop();
  };
}

/** Hot bytes are bounded on each node, over all of them, or both; the lower counts. */
function hotLimit(policy, nNodes) {
  const total = policy.hot_total_limit_bytes;
  const each = policy.hot_limit_bytes;
  if (each !== null && nNodes && (total === null || each * nNodes < total))
    return { bytes: each * nNodes, words: `of ${bytes(each * nNodes)}, ${bytes(each)} a node` };
  if (total !== null) return { bytes: total, words: `of ${bytes(total)}` };
  if (each !== null) return { bytes: null, words: `${bytes(each)} a node` };
  if (policy.hot_limit_blocks !== null)
    return { bytes: null, words: `${count(policy.hot_limit_blocks)} blocks a node` };
  return { bytes: null, words: "no limit" };
}

function used({ used: n, whole, reserved, words }) {
  return [
    h("span", {}, bytes(n)),
    h("span", { class: "soft", data: { limit: whole ?? "" } }, ` ${words}`),
    meter({ used: n, whole, reserved, label: "Used" }),
    reserved ? h("span", { class: "under" }, `${bytes(reserved)} reserved`) : null,
  ];
}

function redisLimit(row) {
  const limit = row.redis_limit_in_force_bytes;
  if (limit === null) return "no limit";
  return `of ${bytes(limit)}${row.policy.redis_limit_bytes === null ? ", the default's" : ""}`;
}

function counter(key, title, hint, value) {
  return {
    key,
    title,
    hint,
    number: true,
    value,
    sign: (row) => String(value(row)),
    node: (row) => h("span", { class: value(row) ? "some" : "zero" }, count(value(row))),
    exact: (row) => `${exact(value(row))} blocks`,
  };
}

function amount(key, title, hint, value) {
  return {
    key,
    title,
    hint,
    number: true,
    value,
    sign: (row) => String(value(row)),
    node: (row) => h("span", { class: value(row) ? null : "zero" }, bytes(value(row))),
    exact: (row) => exactBytes(value(row)),
  };
}

const share = (row) => (row.tokens.asked ? found(row.tokens) / row.tokens.asked : -1);

const COLUMNS = [
  {
    key: "tenant",
    title: "Tenant",
    value: (row) => row.policy.tenant,
    sign: (row) => `${row.policy.tenant} ${row.named}`,
    node: (row) => [row.policy.tenant, row.named ? null : tag("default policy", "It has no policy of its own.")],
    exact: (row) => row.policy.tenant,
  },
  {
    key: "asked",
    title: "Asked",
    hint: "Tokens asked for",
    number: true,
    value: (row) => row.tokens.asked,
    text: (row) => count(row.tokens.asked),
    exact: (row) => `${exact(row.tokens.asked)} tokens`,
  },
  {
    key: "found",
    title: "Found",
    hint: "Of the tokens asked, those found in a tier",
    falling: true,
    value: share,
    sign: (row) => JSON.stringify(row.tokens),
    node: (row) => [
      stack(tokenParts(row.tokens), row.tokens.asked, { label: "Found" }),
      h(
        "span",
        { class: "under" },
        row.tokens.asked ? `${percent(found(row.tokens), row.tokens.asked)} found` : "asked nothing",
      ),
    ],
  },
  {
    key: "hot",
    title: "Hot",
    hint: "Bytes in the workers' pools, against reservation and limit",
    falling: true,
    value: (row) => row.hot.used_bytes,
    sign: (row) => JSON.stringify([row.hot, row.policy, row.hot_reserved_in_force_bytes, row.n_nodes]),
    node: (row) =>
      used({
        used: row.hot.used_bytes,
        whole: hotLimit(row.policy, row.n_nodes).bytes,
        reserved: row.hot_reserved_in_force_bytes,
        words: hotLimit(row.policy, row.n_nodes).words,
      }),
    exact: (row) => exactBytes(row.hot.used_bytes),
  },
  {
    key: "redis",
    title: "Redis",
    hint: "Bytes in Redis, against reservation and limit",
    falling: true,
    value: (row) => row.redis.used_bytes,
    sign: (row) => JSON.stringify([row.redis, row.policy, row.redis_limit_in_force_bytes]),
    node: (row) =>
      used({
        used: row.redis.used_bytes,
        whole: row.redis_limit_in_force_bytes,
        reserved: row.policy.redis_reserved_bytes,
        words: redisLimit(row),
      }),
    exact: (row) => exactBytes(row.redis.used_bytes),
  },
  amount(
    "borrowed",
    "Borrowed",
    "Hot bytes beyond its reservations, which others may ask back",
    (row) => row.hot_borrowed_bytes,
  ),
  amount(
    "lent",
    "Lent",
    "Reserved hot bytes that it does not use, and others may meanwhile",
    (row) => row.hot_idle_reserved_bytes,
  ),
  counter(
    "caused",
    "Caused",
    "Blocks of others that were evicted for this tenant",
    (row) => row.pressure.caused_blocks,
  ),
  counter("suffered", "Suffered", "Its blocks that were evicted for others", (row) => row.pressure.suffered_blocks),
  counter("refused", "Refused", "Blocks that found no room", (row) => row.pressure.refused_blocks),
];

function detail(row, changed) {
  const numbers = h("dl", { class: "facts" });
  const form = caller.kind === "tenant" ? null : quotaForm(row, changed);
  const update = (now) => {
    const policy = now.policy;
    form?.update(now);
    put(
      numbers,
      TIERS.map(({ key, label }) =>
        fact(
          `${label} tokens`,
          `${count(now.tokens[key])} · ${percent(now.tokens[key], now.tokens.asked)}`,
          exact(now.tokens[key]),
        ),
      ),
      fact(
        "Evicted",
        `${count(now.pressure.evicted_blocks)} blocks, ${count(now.pressure.suffered_blocks)} of them for others`,
      ),
      fact("Hot blocks", count(now.hot.blocks)),
      fact(
        "Redis blocks",
        `${count(now.redis.blocks)}${now.redis.pending_bytes ? `, ${bytes(now.redis.pending_bytes)} on the way` : ""}`,
      ),
      fact("Lent to nodes", now.hot_lent_bytes === null ? none : `${bytes(now.hot_lent_bytes)} of its total`),
      fact("Weight", String(policy.weight)),
      fact("Sharing", policy.sharing),
      fact("At its limit", policy.over_quota === "refuse" ? "new blocks are refused" : "its own oldest blocks leave"),
    );
  };
  update(row);
  const right = form?.node ?? h("p", { class: "soft" }, "Quotas are changed by an administrator.");
  return { node: h("div", { class: "split" }, numbers, right), update, isEdited: form?.isEdited };
}
