// Which beginnings of prompts saved most, where they live, and where the blocks of one prompt are.

import { caller, question, read } from "../api.js";
import { showCoverage } from "../coverage.js";
import { freshId, h, put, say } from "../dom.js";
import { Live } from "../live.js";
import { blank, section, shortHash, tellFailure } from "../parts.js";
import { count, exact } from "../words.js";

export const title = "Prefixes";
export const answers = "Which beginnings of prompts are used most, and where do they live?";

export function open(body, shared) {
  const failing = h("div");
  const tree = h("div");
  put(body, section("Hottest prefixes", failing, tree), section("Where is this prompt?", promptForm(shared)));
  const live = new Live({
    every: 4000,
    load: (signal) => read("v1/prefixes?limit=100", { signal }),
    show: ({ prefixes }) => {
      put(failing);
      showTree(tree, prefixes);
    },
    fail: (error) => tellFailure(failing, error),
  }).start();
  return () => live.stop();
}

function showTree(place, prefixes) {
  const sign = JSON.stringify(prefixes);
  if (place.dataset.sign === sign) return;
  place.dataset.sign = sign;
  if (!prefixes.length) {
    put(
      place,
      blank(
        "No prefix has been used again yet.",
        null,
        "A prefix appears once a prompt begins as an earlier one did; workers look for them every few seconds.",
      ),
    );
    return;
  }
  const below = new Map();
  for (const prefix of prefixes) {
    const key = prefix.within ?? "";
    if (!below.has(key)) below.set(key, []);
    below.get(key).push(prefix);
  }
  const most = Math.max(...prefixes.map((each) => each.hits * each.blocks));
  const rows = [];
  const grow = (key, before, depth) => {
    for (const prefix of below.get(key) ?? []) {
      rows.push(leaf(prefix, before, depth, most));
      grow(prefix.hash, prefix, depth + 1);
    }
  };
  grow("", null, 0);
  put(
    place,
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "tree" },
        h("caption", { class: "unseen" }, "Prefixes, each below the one that it goes on from"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Ends with block", "Tenant"].map((each) => h("th", { scope: "col" }, each)),
            ["Blocks", "Hits", "Blocks saved"].map((each) => h("th", { scope: "col", class: "number" }, each)),
            h("th", { scope: "col" }, "Lives in"),
          ),
        ),
        h("tbody", {}, rows),
      ),
    ),
  );
}

function leaf(prefix, before, depth, most) {
  const saved = prefix.hits * prefix.blocks;
  const where = [...prefix.nodes, ...(prefix.redis ? ["Redis"] : [])].join(", ");
  const more = before ? prefix.blocks - before.blocks : prefix.blocks;
  return h(
    "tr",
    { data: { hash: prefix.hash, depth, blocks: prefix.blocks, hits: prefix.hits } },
    h(
      "th",
      { scope: "row", data: { label: "Ends with block" } },
      Array.from({ length: depth }, () => h("span", { class: "step", "aria-hidden": "true" })),
      shortHash(prefix.hash),
      before ? h("span", { class: "unseen" }, ` goes on from ${before.hash.slice(0, 12)}`) : null,
    ),
    h("td", { data: { label: "Tenant" } }, prefix.tenant),
    h(
      "td",
      {
        class: "number",
        title: `${exact(prefix.blocks)} from the first token on`,
        data: { label: "Blocks" },
      },
      before ? `+${count(more)}` : count(more),
    ),
    h("td", { class: "number", title: exact(prefix.hits), data: { label: "Hits" } }, count(prefix.hits)),
    h(
      "td",
      { class: "number", title: `${exact(saved)} blocks not computed again`, data: { label: "Blocks saved" } },
      count(saved),
      h("span", {
        class: "saving",
        "aria-hidden": "true",
        style: { width: `${Math.max(2, (100 * saved) / most)}%` },
      }),
    ),
    h("td", { title: where, data: { label: "Lives in" } }, where || "unknown"),
  );
}

function promptForm(shared) {
  const ids = { prompt: freshId("prompt"), tenant: freshId("tenant"), model: freshId("model") };
  const text = h("textarea", {
    id: ids.prompt,
    spellcheck: "false",
    placeholder: "[128000, 9906, 1917, …]",
    "aria-describedby": `${ids.prompt}-hint ${ids.prompt}-fault`,
  });
  const tenant = h("input", {
    id: ids.tenant,
    autocomplete: "off",
    spellcheck: "false",
    list: `${ids.tenant}-names`,
    value: caller.tenant || null,
    readonly: caller.tenant !== "",
  });
  const names = h("datalist", { id: `${ids.tenant}-names` });
  const model = h("input", {
    id: ids.model,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "of the attached engines",
  });
  const fault = h("p", { class: "problem", id: `${ids.prompt}-fault`, role: "alert" });
  const answer = h("div", { "aria-live": "polite" });
  const submit = async () => {
    say(fault, "");
    let asked;
    try {
      asked = parsePrompt(text.value);
    } catch (error) {
      say(fault, error.message);
      text.focus();
      return;
    }
    const body = { tenant: tenant.value.trim(), ...asked, limit: 1000 };
    if (model.value.trim()) body.model = model.value.trim();
    try {
      showCoverage(answer, await question("v1/prefixes", body));
    } catch (error) {
      put(answer);
      say(fault, error.field ? `${error.field}: ${error.message}` : error.message);
    }
  };
  tenant.addEventListener("focus", () =>
    put(
      names,
      Object.keys(shared.stats?.by_tenant ?? {})
        .slice(0, 1000)
        .map((name) => h("option", { value: name })),
    ),
  );
  return h(
    "form",
    {
      class: "form",
      "aria-label": "Where is this prompt?",
      on: {
        submit: (event) => {
          event.preventDefault();
          void submit();
        },
      },
    },
    h(
      "div",
      { class: "field" },
      h("label", { for: ids.prompt }, "Token ids, or hashes of blocks"),
      text,
      h(
        "span",
        { class: "hint", id: `${ids.prompt}-hint` },
        "Token ids as the engine's tokenizer gives them, separated by anything; hashes where it names blocks by more than tokens: an adapter, a salt or images. Nothing is kept of them.",
      ),
      fault,
    ),
    h(
      "div",
      { class: "fields" },
      h("div", { class: "field" }, h("label", { for: ids.tenant }, "Tenant"), tenant, names),
      h("div", { class: "field" }, h("label", { for: ids.model }, "Model"), model),
    ),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "act main" }, "Show where it is")),
    answer,
  );
}

/** Hashes are 64 hexadecimal digits each; everything else is numbers. Throws with what to paste. */
export function parsePrompt(text) {
  const words = text.split(/[^0-9a-zA-Z]+/).filter(Boolean);
  if (!words.length) throw new Error("Paste the prompt's token ids, such as [1, 15043, 3186], or block hashes.");
  if (words.every((word) => /^[0-9a-f]{64}$/i.test(word))) return { hashes: words };
  const wrong = words.find((word) => !/^[0-9]{1,10}$/.test(word));
  if (wrong !== undefined)
    throw new Error(
      `“${wrong.slice(0, 24)}” is no token id. Text has to be tokenized first, with the engine's own tokenizer.`,
    );
  return { tokens: words.map(Number) };
}
