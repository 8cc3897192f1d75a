// Is it working, what does it save, who uses it, who suffers because of whom, and what would more memory buy?

import { read } from "../api.js";
import { Flow, meter, stack, tokenParts } from "../charts.js";
import { h, put, say } from "../dom.js";
import { buying, suffering } from "../glance.js";
import { Leases, Live } from "../live.js";
import { NO_WORKER, blank, nodeState, section, state, tellFailure, withCode } from "../parts.js";
import { TIERS, ago, bytes, count, duration, exact, exactBytes, found, percent, plural } from "../words.js";

export const title = "Overview";
export const answers = "Is it working, what does it save, and for whom?";

const TENANTS_SHOWN = 6;
const NODES_SHOWN = 8;

export function open(body, shared) {
  const alerts = h("ul", { class: "alerts", "aria-label": "Alerts" });
  const spoken = h("p", { class: "unseen", role: "status" });
  const speakNews = newAlerts(spoken);
  const failing = h("div");
  const ratio = figure("of tokens asked were found");
  const asked = figure("tokens asked");
  const tokens = h("div");
  const legend = h("div", { class: "legend" });
  const flow = new Flow();
  const flowFailing = h("div");
  const leases = new Leases();
  const seconds = figure("of prefill saved");
  const spared = figure("tokens not computed again");
  const savedNote = h("p", { class: "soft more" });
  const hot = tier("Hot", "memory of the workers");
  const redis = tier("Redis", "shared by all workers");
  const nodes = h("div");
  const tenants = h("div");
  const glances = [suffering(), buying()];

  put(
    body,
    failing,
    spoken,
    alerts,
    h(
      "div",
      { class: "columns" },
      wide(
        "w8",
        section(
          "Tokens found, by tier",
          h("div", { class: "figures" }, ratio.node, asked.node),
          h("div", { class: "chart" }, tokens),
          h("div", { class: "beside" }, legend, flow.node),
          flowFailing,
        ),
      ),
      wide(
        "w4",
        section("Saved", h("div", { class: "figures" }, seconds.node, spared.node), savedNote),
        section("Bytes, by tier", hot.node, redis.node),
      ),
      wide(
        "w6",
        section("Nodes", nodes, h("a", { class: "more", href: "nodes", "data-page": "nodes" }, "All nodes")),
      ),
      wide(
        "w6",
        section(
          "Tenants that ask most",
          tenants,
          h("a", { class: "more", href: "tenants", "data-page": "tenants" }, "All tenants"),
        ),
      ),
      glances.map(({ node }) => wide("w6", node)),
    ),
  );
  seconds.number.dataset.field = "saved_prefill_s";
  asked.number.dataset.field = "tokens.asked";

  const offStats = shared.onStats((stats) => {
    const all = stats.tokens;
    figureSays(
      ratio,
      percent(found(all), all.asked),
      `${exact(found(all))} of ${exact(all.asked)} tokens`,
      found(all),
    );
    figureSays(asked, count(all.asked), exact(all.asked), all.asked);
    put(tokens, stack(tokenParts(all), all.asked, { label: "Tokens by tier" }));
    put(
      legend,
      TIERS.map(({ key, label }) => [
        h("span", { class: `key of-${key}`, "aria-hidden": "true" }),
        h("span", {}, label),
        h(
          "span",
          { class: "n", title: exact(all[key]), data: { field: `tokens.${key}`, value: all[key] } },
          count(all[key]),
        ),
        h("span", { class: "n soft" }, percent(all[key], all.asked)),
      ]),
    );
    figureSays(
      seconds,
      stats.saved_prefill_s > 0 ? duration(stats.saved_prefill_s) : "–",
      `${stats.saved_prefill_s} s`,
      stats.saved_prefill_s,
    );
    figureSays(spared, count(found(all)), exact(found(all)), found(all));
    say(
      savedNote,
      stats.saved_prefill_s > 0
        ? "Seconds are those of the workers that run now, at the speed their engines were measured at."
        : found(all) > 0
          ? "No engine has said yet how fast it computes, so seconds are not known."
          : "Nothing was found yet: prompts have to be asked for twice.",
    );
    tierSays(hot, stats.tiers.hot.bytes, stats.tiers.hot.capacity_bytes, stats.tiers.hot.blocks, "no worker", 0);
    tierSays(
      redis,
      stats.tiers.redis.bytes,
      stats.tiers.redis.capacity_bytes,
      stats.tiers.redis.blocks,
      "no capacity set",
      stats.tiers.redis.pending_bytes,
    );
    if (shared.caller.kind === "tenant") hot.whole.title = "Yours, of what all workers have together.";
    showTenants(tenants, stats);
  });

  const slow = new Live({
    every: 1000,
    load: async (signal) => {
      const [told, list] = await Promise.all([read("v1/alerts", { signal }), read("v1/nodes", { signal })]);
      return { alerts: told.alerts, nodes: list.nodes };
    },
    show: ({ alerts: told, nodes: list }) => {
      put(failing);
      showAlerts(alerts, told);
      speakNews(told);
      // The list of nodes may be read a moment before the alerts are: what one says is lost, both show as lost.
      const lost = new Set(told.filter((alert) => alert.about === "lost").map((alert) => alert.node));
      for (const node of list) {
        node.is_late = leases.isLate(node);
        node.alive &&= !lost.has(node.node);
      }
      showNodes(nodes, list);
    },
    fail: (error) => {
      tellFailure(failing, error);
      showUnknown(alerts);
    },
  }).start();

  const past = new Live({
    every: 5000, // it has no more than a point in that time
    load: (signal) => read("v1/history", { signal }),
    show: ({ points }) => {
      put(flowFailing);
      flow.show(points);
    },
    fail: (error) => tellFailure(flowFailing, error),
  }).start();

  for (const { live } of glances) live.start();

  return () => {
    offStats();
    slow.stop();
    past.stop();
    for (const { live } of glances) live.stop();
  };
}

function wide(width, ...children) {
  return h("div", { class: `${width} page` }, children);
}

function figure(label) {
  const number = h("div", { class: "number" }, "–");
  return { number, node: h("div", { class: "figure" }, number, h("div", { class: "label" }, label)) };
}

function figureSays({ number }, text, exactly, value) {
  say(number, text);
  number.title = exactly;
  number.dataset.value = value;
}

function tier(name, where) {
  const used = h("span", { data: { field: `bytes.${name.toLowerCase()}` } });
  const whole = h("span", { class: "soft" });
  const bar = h("div");
  const blocks = h("span", { class: "soft" });
  return {
    used,
    whole,
    bar,
    blocks,
    node: h(
      "div",
      { class: "tier" },
      h("p", {}, h("strong", {}, name), h("span", { class: "soft" }, ` ${where}`)),
      h("p", { class: "tier-line" }, used, whole),
      bar,
      blocks,
    ),
  };
}

function tierSays(part, used, whole, blocks, without, pending) {
  say(part.used, bytes(used));
  part.used.title = exactBytes(used);
  part.used.dataset.value = used;
  say(part.whole, whole ? ` of ${bytes(whole)} · ${percent(used, whole)}` : `, ${without}`);
  put(part.bar, meter({ used, whole, label: "Used" }));
  say(part.blocks, `${plural(blocks, "block")}${pending ? `, ${bytes(pending)} on the way` : ""}`);
}

function showAlerts(list, told) {
  if (!told.length) {
    put(
      list,
      h(
        "li",
        { class: "is-good" },
        h("span", { class: "sign", "aria-hidden": "true" }, "✓"),
        h("span", {}, "Nothing needs attention."),
        h("span", {}),
      ),
    );
    return;
  }
  const sign = { alarm: "✕", warning: "!", note: "i" };
  put(
    list,
    told.map((alert) =>
      h(
        "li",
        { class: `is-${alert.level}`, data: { about: alert.about, node: alert.node ?? "" } },
        h("span", { class: "sign", role: "img", "aria-label": alert.level }, sign[alert.level] ?? "i"),
        h("span", {}, withCode(alert.text)),
        h("span", { class: "age" }, ago(alert.age_s)),
      ),
    ),
  );
}

/** Speaks alarms and warnings that were not there the last time; their ages and counts change all the time. */
function newAlerts(spoken) {
  const key = ({ level, about, node }) => `${level} ${about} ${node}`;
  let known = new Set();
  let said = [];
  return (told) => {
    const fresh = told.filter((alert) => alert.level !== "note" && !known.has(key(alert)));
    known = new Set(told.map(key));
    if (fresh.length) {
      say(spoken, fresh.map(({ text }) => text.replaceAll("`", "")).join(" "));
      said = fresh.map(key);
    } else if (!said.every((each) => known.has(each))) {
      put(spoken); // one of them has left: should it come again, the same words are news
      said = [];
    }
  };
}

/** Silence is no good news. */
function showUnknown(list) {
  put(
    list,
    h(
      "li",
      { class: "is-warning" },
      h("span", { class: "sign", "aria-hidden": "true" }, "!"),
      h("span", {}, "What needs attention is not known now: alerts could not be read."),
      h("span", {}),
    ),
  );
}

function showNodes(place, nodes) {
  if (!nodes.length) {
    put(place, blank(...NO_WORKER));
    return;
  }
  const gravity = (node) => ["alarm", "warning", "note", "good"].indexOf(nodeState(node)[0]);
  const worstFirst = [...nodes].sort((a, b) => gravity(a) - gravity(b) || (a.node < b.node ? -1 : 1));
  put(
    place,
    h("div", { class: "lines" }, worstFirst.slice(0, NODES_SHOWN).map(nodeLine)),
    nodes.length > NODES_SHOWN
      ? h("p", { class: "soft more" }, `and ${plural(nodes.length - NODES_SHOWN, "more node")}`)
      : null,
  );
}

function nodeLine(node) {
  return h(
    "div",
    { class: "line", data: { node: node.node } },
    h("span", { class: "cut", title: node.node }, node.node),
    state(...nodeState(node)),
    meter({ used: node.alive ? node.hot_bytes : 0, whole: node.capacity_bytes, label: "Pool" }),
    h(
      "span",
      { class: "number soft" },
      node.alive ? `${bytes(node.hot_bytes)} of ${bytes(node.capacity_bytes)}` : "its pool is gone",
    ),
  );
}

function showTenants(place, stats) {
  const most = Object.entries(stats.by_tenant)
    .filter(([, tokens]) => tokens.asked > 0)
    .sort(([a, x], [b, y]) => y.asked - x.asked || (a < b ? -1 : 1))
    .slice(0, TENANTS_SHOWN);
  if (!most.length) {
    put(
      place,
      blank(
        "No tenant has asked for anything yet.",
        null,
        "Attach an engine to a worker, or see it run with `tiered demo`.",
      ),
    );
    return;
  }
  put(
    place,
    h(
      "div",
      { class: "lines" },
      most.map(([name, tokens]) =>
        h(
          "div",
          { class: "line", data: { tenant: name } },
          h("span", { class: "cut", title: name }, name),
          h("span", { class: "number", title: `${exact(tokens.asked)} tokens asked` }, count(tokens.asked)),
          stack(tokenParts(tokens), tokens.asked, { label: name }),
          h("span", { class: "number soft" }, `${percent(found(tokens), tokens.asked)} found`),
        ),
      ),
    ),
  );
}
