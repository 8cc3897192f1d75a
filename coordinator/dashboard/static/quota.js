// Changes what a tenant was promised. The API decides what is right; what it says stands at the field it names.

import { Refused, change } from "./api.js";
import { attribute, freshId, h, put, say } from "./dom.js";
import { tokenField } from "./token.js";
import { bytes, bytesInput, parseBytes } from "./words.js";

const FIELDS = [
  { name: "hot_total_reserved_bytes", label: "Hot reserved, all nodes", kind: "bytes", least: 0 },
  { name: "hot_total_limit_bytes", label: "Hot limit, all nodes", kind: "bytes" },
  { name: "hot_reserved_bytes", label: "Hot reserved, each node", kind: "bytes", least: 0 },
  { name: "hot_limit_bytes", label: "Hot limit, each node", kind: "bytes" },
  { name: "redis_reserved_bytes", label: "Redis reserved", kind: "bytes", least: 0 },
  { name: "redis_limit_bytes", label: "Redis limit", kind: "bytes" },
  { name: "weight", label: "Weight", kind: "number" },
  { name: "redis_ttl_s", label: "Leave Redis after, seconds unused", kind: "number", mayBeEmpty: true },
  {
    name: "over_quota",
    label: "At its limit",
    kind: "choice",
    choices: [
      ["evict_own", "its own oldest leave"],
      ["refuse", "new ones are refused"],
    ],
  },
  {
    name: "copies",
    label: "Copies of each block",
    kind: "choice",
    choices: [
      [1, "1"],
      [2, "2"],
    ],
  },
];

/**
 * changed: called once a change is in force. {node, update(row), isEdited()}: what others change meanwhile is taken over,
 * but for a field that somebody has written in, where it is said.
 */
export function quotaForm(row, changed) {
  const { tenant } = row.policy;
  let policy = row.policy;
  let isNamed = row.named;
  const inputs = new Map();
  const outcome = h("p", { role: "status", class: "soft" });
  const unnamed = h(
    "p",
    { class: "soft", hidden: isNamed },
    "It lives under the default's policy. Saving gives it one of its own.",
  );
  const save = h("button", { type: "submit", class: "act main" }, "Save");
  const token = tokenField();

  const fields = FIELDS.map((field) => {
    const id = freshId("quota");
    const fault = h("span", { class: "problem", id: `${id}-fault`, hidden: true });
    const input =
      field.kind === "choice"
        ? h(
            "select",
            { id, name: field.name },
            field.choices.map(([value, label]) => h("option", { value }, label)),
          )
        : h("input", {
            id,
            name: field.name,
            inputmode: field.kind === "number" ? "decimal" : null,
            autocomplete: "off",
            spellcheck: "false",
            placeholder: placeholder(field),
          });
    attribute(input, "aria-describedby", fault.id);
    inputs.set(field.name, { field, input, fault });
    return h("div", { class: "field" }, h("label", { for: id }, field.label), input, fault);
  });

  const inForce = ({ name, kind }) => String(kind === "bytes" ? bytesInput(policy[name]) : (policy[name] ?? ""));

  const fill = () => {
    for (const { field, input } of inputs.values()) input.value = inForce(field);
  };

  const isEdited = () => [...inputs.values()].some(({ field, input }) => input.value !== inForce(field));

  const update = (now) => {
    if (save.disabled) return; // what is being saved comes back as its answer
    isNamed = now.named;
    unnamed.hidden = isNamed;
    const before = new Map([...inputs].map(([name, { field }]) => [name, inForce(field)]));
    policy = now.policy;
    for (const [name, { field, input, fault }] of inputs) {
      const value = inForce(field);
      if (value === before.get(name)) continue;
      if (input.value === before.get(name)) {
        input.value = value;
      } else if (input.value !== value) {
        say(fault, `Changed elsewhere to ${wordFor(field, value)}.`);
        fault.hidden = false;
      }
    }
  };

  const undo = () => {
    forgive();
    fill();
  };

  const blame = (name, message) => {
    const at = inputs.get(name);
    if (!at) return false;
    say(at.fault, asOnThePage(message));
    at.fault.hidden = false;
    attribute(at.input, "aria-invalid", "true");
    at.input.focus();
    return true;
  };

  const forgive = () => {
    put(outcome);
    attribute(outcome, "class", "soft");
    for (const { input, fault } of inputs.values()) {
      fault.hidden = true;
      attribute(input, "aria-invalid", null);
    }
  };

  const fail = (message) => {
    attribute(outcome, "class", "problem");
    say(outcome, message);
  };

  /** What differs from the policy in force; null once a field is to blame. */
  const wanted = () => {
    const given = {};
    for (const { field, input } of inputs.values()) {
      if (input.value === inForce(field)) continue; // not all that the API allows can be read back from the text
      let value;
      try {
        value = valueOf(field, input.value);
      } catch (error) {
        blame(field.name, error.message);
        return null;
      }
      if (value !== policy[field.name]) given[field.name] = value;
    }
    return given;
  };

  const submit = async () => {
    forgive();
    const given = wanted();
    if (given === null) return;
    if (isNamed && !Object.keys(given).length) {
      say(outcome, "Nothing was changed.");
      return;
    }
    if (!token.take()) return;
    save.disabled = true;
    try {
      const path = `v1/tenants/${encodeURIComponent(tenant)}`;
      const answer = isNamed
        ? await change("PATCH", path, given)
        : await change("POST", "v1/tenants", { ...policy, ...given });
      policy = answer.policy;
      isNamed = answer.named;
      unnamed.hidden = isNamed;
      fill();
      say(outcome, "Saved. The workers follow within a second or two.");
      changed();
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) token.refuse(error.message);
      else if (!(error instanceof Refused && blame(error.field, error.message))) fail(error.message);
    } finally {
      save.disabled = false;
    }
  };

  fill();
  const node = h(
    "form",
    {
      class: "form",
      novalidate: true,
      "aria-label": `Quotas of ${tenant}`,
      on: {
        submit: (event) => {
          event.preventDefault();
          void submit();
        },
        keydown: (event) => {
          // What somebody wrote is not thrown away together with the form: the first Escape takes it back.
          if (event.key !== "Escape") return;
          if (!isEdited()) return;
          event.preventDefault();
          undo();
        },
      },
    },
    unnamed,
    h("div", { class: "fields" }, fields),
    token.node,
    h(
      "div",
      { class: "buttons" },
      save,
      h(
        "button",
        {
          type: "button",
          class: "act",
          on: { click: undo },
        },
        "Undo",
      ),
      outcome,
    ),
  );
  return { node, update, isEdited };
}

/** What an input says, in words: of a choice its label, of nothing what nothing means there. */
function wordFor(field, value) {
  if (field.kind === "choice") return field.choices.find(([each]) => String(each) === value)?.[1] ?? value;
  return value || placeholder(field);
}

function placeholder(field) {
  if (field.kind === "bytes" && field.least === undefined) return "no limit";
  return field.mayBeEmpty ? "never" : null;
}

/** The API names its own fields and exact bytes; who looks at the form knows labels and sizes. */
function asOnThePage(message) {
  return FIELDS.reduce((text, { name, label }) => text.replaceAll(name, label), message).replaceAll(
    /\((\d+)\)/g,
    (_, n) => `(${bytes(n)})`,
  );
}

function valueOf(field, text) {
  if (field.kind === "choice") return typeof field.choices[0][0] === "number" ? Number(text) : text;
  if (field.kind === "bytes") return parseBytes(text) ?? field.least ?? null;
  const given = text.trim();
  if (given === "" && field.mayBeEmpty) return null;
  if (given === "" || !Number.isFinite(Number(given))) throw new Error("Write a number.");
  return Number(given);
}
