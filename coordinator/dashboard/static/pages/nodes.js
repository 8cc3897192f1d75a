// Which workers there are, what they hold and move, and how one is emptied before it goes.

import { caller, read } from "../api.js";
import { meter, stack } from "../charts.js";
import { h, put } from "../dom.js";
import { drainForm } from "../drain.js";
import { Leases, Live, Rates } from "../live.js";
import { NO_WORKER, blank, fact, nodeState, problem, state, tellFailure } from "../parts.js";
import { Table } from "../table.js";
import {
  bytes,
  bytesPerSecond,
  count,
  duration,
  exact,
  exactBytes,
  none,
  percent,
  tokensPerSecond,
} from "../words.js";

export const title = "Nodes";
export const answers = "Which workers are there, what do they hold, and whom do they serve?";

const OPEN_UP_TO = 3;
const TENANTS_SHOWN = 5;

const isTenant = caller.kind === "tenant"; // whose token is told zeros in place of what all tenants do together

const TRAFFIC = ["peer_received_bytes", "peer_sent_bytes", "redis_read_bytes", "redis_written_bytes"];

export function open(body, shared) {
  const failing = h("div");
  const rates = new Rates();
  const leases = new Leases();
  let isFirst = true;
  const table = new Table({
    what: "nodes",
    rowKey: (row) => row.node,
    filterText: (row) => row.node,
    sort: { key: "node", falling: false },
    empty: blank(...NO_WORKER),
    columns: COLUMNS,
    detail: (row) => detail(row, () => live.now()),
  });
  put(body, failing, h("section", { class: "card", "aria-label": "Nodes" }, table.node));
  const live = new Live({
    every: 1000,
    load: (signal) => read("v1/nodes", { signal }),
    show: ({ nodes }) => {
      put(failing);
      for (const node of nodes) {
        node.rates_now = rates.of(node.node, node.epoch, pick(node.traffic), shared.stats?.age_s ?? 0);
        node.is_late = leases.isLate(node);
      }
      table.show(nodes);
      if (isFirst && nodes.length <= OPEN_UP_TO && matchMedia("(min-width: 641px)").matches)
        for (const node of nodes) table.open(node.node, { focus: false });
      isFirst = false;
    },
    fail: (error) => tellFailure(failing, error),
  }).start();
  return () => {
    live.stop();
    table.stop();
  };
}

function pick(traffic) {
  return Object.fromEntries(TRAFFIC.map((name) => [name, traffic[name]]));
}

function traffic(key, title, hint, name) {
  return {
    key,
    title,
    hint,
    number: true,
    value: (row) => (isTenant ? null : row.traffic[name]),
    sign: (row) => `${row.rates_now?.[name]} ${row.traffic[name]}`,
    node: (row) =>
      isTenant
        ? none
        : [
            bytesPerSecond(row.rates_now?.[name]),
            h("span", { class: "under" }, `${bytes(row.traffic[name])} in all`),
          ],
    exact: (row) => (isTenant ? null : exactBytes(row.traffic[name])),
  };
}

const used = (row) => row.pool_blocks - row.free_blocks;

const COLUMNS = [
  { key: "node", title: "Node", value: (row) => row.node, text: (row) => row.node, exact: (row) => row.node },
  {
    key: "state",
    title: "State",
    value: (row) => nodeState(row)[1],
    sign: (row) => nodeState(row).join(" "),
    node: (row) => state(...nodeState(row)),
  },
  {
    key: "epoch",
    title: "Epoch",
    hint: "Grows every time the node joins",
    number: true,
    value: (row) => row.epoch,
    text: (row) => String(row.epoch),
  },
  {
    key: "lease",
    title: "Lease",
    hint: "Left of its lease; it is renewed again and again",
    number: true,
    falling: false,
    value: (row) => row.lease_left_s,
    text: (row) => (row.alive ? duration(row.lease_left_s) : none),
  },
  {
    key: "pool",
    title: "Pool",
    hint: "Blocks in use, of the hot tier",
    falling: true,
    value: used,
    sign: (row) => `${row.alive} ${used(row)} ${row.pool_blocks} ${row.hot_bytes} ${row.capacity_bytes}`,
    node: (row) =>
      !row.alive
        ? h("span", { class: "soft" }, "its pool is gone")
        : [
            h("span", {}, bytes(row.hot_bytes)),
            h("span", { class: "soft" }, ` of ${bytes(row.capacity_bytes)}`),
            meter({ used: row.hot_bytes, whole: row.capacity_bytes, label: "Pool" }),
            h(
              "span",
              { class: "under" },
              row.pool_blocks
                ? `${count(used(row))} of ${count(row.pool_blocks)} blocks`
                : "no pool until an engine attaches",
            ),
          ],
    exact: (row) => exactBytes(row.hot_bytes),
  },
  {
    key: "engines",
    title: "Engines",
    hint: "Attached now",
    number: true,
    value: (row) => (isTenant ? null : row.engines),
    text: (row) => (row.alive && !isTenant ? exact(row.engines) : none),
  },
  traffic("from-peers", "From peers", "Received from other workers", "peer_received_bytes"),
  traffic("to-peers", "To peers", "Sent to other workers", "peer_sent_bytes"),
  traffic("from-redis", "From Redis", "Read from Redis", "redis_read_bytes"),
  traffic("to-redis", "To Redis", "Written to Redis", "redis_written_bytes"),
];

function detail(row, changed) {
  const name = row.node;
  const facts = h("dl", { class: "facts" });
  const pool = h("div");
  const draining = drainForm(row, changed);
  let capacity = row.capacity_bytes; // another one once the worker was started anew
  const update = (node) => {
    const { rates: measured } = node;
    capacity = node.capacity_bytes;
    put(
      facts,
      fact("Serves peers at", node.peer),
      fact("Engines attached", isTenant ? none : models(node)),
      fact("Block", node.block_bytes ? `${bytes(node.block_bytes)}, layout ${node.layout}` : none),
      fact(
        "Engines compute",
        measured.prefill_tokens_per_s ? tokensPerSecond(measured.prefill_tokens_per_s) : "not measured yet",
      ),
      fact("Peers give", speed(measured.peers)),
      fact("Redis gives", speed(measured.redis)),
      fact(
        "Redis breaker",
        isTenant
          ? none
          : node.traffic.breaker_open
            ? state("alarm", "open: Redis is left alone after repeated failures")
            : "closed",
      ),
      fact("Version", `${node.version}, process ${node.pid}`),
    );
    draining.update(node);
  };
  update(row);
  const usage = new Live({
    every: 3000,
    load: (signal) => read(`v1/usage?node=${encodeURIComponent(name)}`, { signal }),
    show: ({ usage: rows }) => showPool(pool, rows, capacity),
    fail: (error) => put(pool, problem(error.message)),
  }).start();
  const right = h(
    "div",
    { class: "form" },
    h("div", {}, h("h3", { class: "soft small" }, "Pool by tenant"), pool),
    draining.node,
  );
  return { node: h("div", { class: "split" }, facts, right), update, stop: () => usage.stop() };
}

function models(node) {
  const names = new Set();
  for (const text of node.scopes) {
    try {
      names.add(JSON.parse(text).model ?? text);
    } catch {
      names.add(text);
    }
  }
  return names.size ? `${node.engines} · ${[...names].join(", ")}` : String(node.engines);
}

function speed(source) {
  return source.bytes_per_s
    ? `${bytesPerSecond(source.bytes_per_s)}, first byte after ${(1000 * source.latency_s).toFixed(1)} ms`
    : "not measured yet";
}

const tints = new Map(); // tenant -> its colour, the same at every node as far as there are enough

function tint(parts) {
  const free = new Set(Array.from({ length: TENANTS_SHOWN }, (_, index) => String(index)));
  const take = (part, key) => {
    part.key = key;
    free.delete(key);
  };
  for (const part of parts) if (free.has(tints.get(part.label))) take(part, tints.get(part.label));
  for (const part of parts) {
    if (part.key !== undefined) continue;
    take(part, [...free][0]);
    if (!tints.has(part.label)) tints.set(part.label, part.key);
  }
}

function showPool(place, rows, capacity) {
  const most = rows.filter((each) => each.tier === "hot").sort((a, b) => b.bytes - a.bytes);
  if (!most.length) {
    put(place, h("p", { class: "soft" }, "It holds no blocks."));
    return;
  }
  const rest = most.slice(TENANTS_SHOWN);
  const parts = most.slice(0, TENANTS_SHOWN).map((each) => ({ label: each.tenant, value: each.bytes, row: each }));
  tint(parts);
  if (rest.length)
    parts.push({
      key: "rest",
      label: `${exact(rest.length)} others`,
      value: rest.reduce((sum, each) => sum + each.bytes, 0),
    });
  put(
    place,
    stack(parts, capacity, { label: "Pool by tenant", words: bytes }),
    h(
      "div",
      { class: "legend" },
      parts.map((part) => [
        h("span", { class: `key of-${part.key}`, "aria-hidden": "true" }),
        h(
          "span",
          { class: "cut" },
          part.label,
          part.row && part.row.limit_bytes !== null
            ? h("span", { class: "soft" }, ` limit ${bytes(part.row.limit_bytes)} here`)
            : null,
        ),
        h(
          "span",
          { class: "n", title: exactBytes(part.value), data: { tenant: part.label, value: part.value } },
          bytes(part.value),
        ),
        h("span", { class: "n soft" }, percent(part.value, capacity)),
      ]),
    ),
  );
}
