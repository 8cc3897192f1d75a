// What left, was refused or was missed, and why; as it happens.

import { read } from "../api.js";
import { attribute, freshId, h, put, say } from "../dom.js";
import { Live } from "../live.js";
import { blank, shortHash, tellFailure } from "../parts.js";
import { count, exact, plural } from "../words.js";

export const title = "Evictions";
export const answers = "What left, was refused or was missed, and because of whom?";

const KEPT = 400;
const FIRST = 100;
const KINDS = [
  "evicted",
  "parted",
  "uncopied",
  "refused",
  "missed",
  "corrupt",
  "torn",
  "failed",
  "expired",
  "cleared",
  "removed",
  "lost",
  "stray",
];
const OTHER_KINDS = ["stored", "fetched", "demoted", "copied", "recalled", "adopted", "planned", "there"];
const BAD = new Set(["corrupt", "torn", "lost", "stray", "failed"]);

export function open(body, shared) {
  let after = null;
  let events = [];
  let isPaused = false;
  let waiting = [];
  let day = new Date().toDateString();
  let isAnew = true; // what arrives next takes the place of what is listed
  let wasPassed = false; // nodes told more than can be followed: what came before the list is not all there
  const failing = h("div");
  const silent = h("p", { class: "soft" });
  const list = h("ol", { class: "log" });
  const nothing = h("div", { class: "blank" });
  const note = h("p", { class: "soft table-note", "aria-live": "polite" });
  const asked = new URLSearchParams(location.search);

  const tenant = chooser("Tenant", "all tenants", asked.get("tenant"));
  const kind = chooser("Kind", "all worth knowing", asked.get("what"));
  const node = chooser("Source", "all nodes and Redis", asked.get("node"));
  kind.offer([...KINDS, ...OTHER_KINDS]);
  const pause = h("button", { type: "button", class: "quiet", "aria-pressed": "false" }, "Pause");

  const query = () => {
    const wanted = new URLSearchParams();
    if (tenant.value) wanted.set("tenant", tenant.value);
    if (kind.value) wanted.set("what", kind.value);
    if (node.value) wanted.set("node", node.value);
    return wanted;
  };

  const again = () => {
    const wanted = query().toString();
    history.replaceState(null, "", wanted ? `evictions?${wanted}` : "evictions");
    begin();
    live.now();
  };

  const begin = () => {
    after = null;
    isAnew = true;
    wasPassed = false;
    events = [];
    waiting = [];
    put(list);
  };

  for (const each of [tenant, kind, node]) each.input.addEventListener("change", again);
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    attribute(pause, "aria-pressed", isPaused);
    say(pause, isPaused ? "Go on" : "Pause");
    if (!isPaused) take([]);
    tell();
  });

  const take = (fresh) => {
    if (isPaused) {
      waiting = [...fresh, ...waiting].slice(0, KEPT);
      return;
    }
    const arrived = [...fresh, ...waiting];
    waiting = [];
    if (isAnew) {
      events = [];
      put(list);
    }
    const isFirst = events.length === 0;
    isAnew = false;
    events = [...arrived, ...events].slice(0, KEPT);
    list.prepend(...arrived.slice(0, KEPT).map((event) => entry(event, !isFirst)));
    while (list.childElementCount > KEPT) list.lastElementChild.remove();
  };

  const tell = () => {
    say(
      note,
      isPaused
        ? `paused, ${plural(waiting.length, "event")} waiting`
        : `${events.length >= KEPT ? `the newest ${exact(KEPT)}` : plural(events.length, "event")}${
            wasPassed ? "; some were passed over, since too many came to follow" : ""
          }`,
    );
    nothing.hidden = events.length > 0;
    if (!nothing.hidden) {
      const isFiltered = query().toString() !== "";
      put(
        nothing,
        isFiltered
          ? blank(
              "Nothing of this kind is remembered.",
              null,
              "Choose all, or wait: what happens from now on appears here.",
            )
          : blank(
              "Nothing has left, been refused or been missed.",
              null,
              "Blocks leave once a pool or a tenant's limit is full; then each says here for whom, and by which rule.",
            ),
      );
    }
  };

  put(
    body,
    failing,
    h(
      "section",
      { class: "card", "aria-label": "Log" },
      h("div", { class: "tools" }, tenant.node, kind.node, node.node, pause, note),
      silent,
      list,
      nothing,
    ),
  );

  const offStats = shared.onStats((stats) => tenant.offer(Object.keys(stats.by_tenant)));
  const live = new Live({
    every: 2000,
    load: async (signal) => {
      const ask = (place) => {
        const wanted = query();
        wanted.set("limit", String(FIRST));
        if (place !== null) wanted.set("after", place);
        return read(`v1/evictions?${wanted}`, { signal });
      };
      const followed = after === null ? null : await ask(after);
      if (followed && !isFull(followed.events)) return { told: followed, nodes: null, isFirst: false };
      const [told, nodes] = await Promise.all([ask(null), read("v1/nodes", { signal })]);
      return { told, nodes, isFirst: true, isBehind: followed !== null };
    },
    show: ({ told, nodes, isFirst, isBehind }) => {
      put(failing);
      if (day !== new Date().toDateString()) {
        day = new Date().toDateString();
        put(list, ...events.map((event) => entry(event, false)));
      }
      if (nodes) node.offer([...nodes.nodes.filter((each) => each.alive).map((each) => each.node), "redis"]);
      if (isBehind) {
        isAnew = true;
        wasPassed = true;
        waiting = [];
      }
      after = told.after;
      take(isFirst ? told.events : [...told.events].reverse());
      say(
        silent,
        told.silent.length
          ? `No answer from ${told.silent.map((each) => `${each.who} (${each.reason})`).join(", ")}.`
          : "",
      );
      tell();
    },
    fail: (error) => {
      tellFailure(failing, error);
      if (error.field === "after") begin(); // it is what an older coordinator gave
    },
  }).start();

  return () => {
    offStats();
    live.stop();
  };
}

/** After a place, a node tells its oldest events first, this many at most: then it is ahead of who follows it. */
function isFull(events) {
  const told = new Map();
  for (const { where } of events) if (where !== "redis") told.set(where, (told.get(where) ?? 0) + 1);
  return Math.max(0, ...told.values()) >= FIRST;
}

function chooser(label, all, value) {
  const id = freshId("choose");
  const input = h("select", { id });
  let names = [];
  const offer = (offered) => {
    const sorted = [...new Set([...offered, ...(input.value || value ? [input.value || value] : [])])].sort();
    if (sorted.length === names.length && sorted.every((name, index) => name === names[index])) return;
    const chosen = input.value || value || "";
    names = sorted;
    put(
      input,
      h("option", { value: "" }, all),
      sorted.map((name) => h("option", { value: name }, name)),
    );
    input.value = chosen;
    value = null;
  };
  offer([]);
  return {
    input,
    offer,
    node: h("div", { class: "choose" }, h("label", { class: "unseen", for: id }, label), input),
    get value() {
      return input.value;
    },
  };
}

/** The kind stands in a column of its own. */
function withoutKind({ sentence, what }) {
  return sentence.startsWith(`${what}: `) ? sentence.slice(what.length + 2) : sentence;
}

/** Without the day where that is today. */
function when(at) {
  const time = at.toLocaleTimeString("en-GB");
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

function entry(event, isNew) {
  const at = new Date(event.at);
  return h(
    "li",
    { class: isNew ? "is-new" : null, data: { what: event.what, tenant: event.tenant, where: event.where } },
    h("time", { datetime: event.at, class: "soft", title: at.toLocaleString() }, when(at)),
    h("span", { class: BAD.has(event.what) ? "what is-bad" : "what" }, event.what),
    h("span", { class: "cut", title: event.tenant }, event.tenant),
    h("span", { class: "soft cut", title: `remembered by ${event.where}` }, event.where),
    h(
      "span",
      { class: "sentence" },
      withoutKind(event),
      event.blocks > 1 ? h("span", { class: "soft" }, ` · ${count(event.blocks)} blocks`) : null,
      event.block ? [" ", shortHash(event.block)] : null,
    ),
  );
}
