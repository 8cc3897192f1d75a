// Empties a node in order before it goes: asks twice, shows how far it is, and can be called off.

import { Refused, caller, change } from "./api.js";
import { h, put, say } from "./dom.js";
import { tokenField } from "./token.js";
import { count } from "./words.js";

/** changed: called once the API has agreed. */
export function drainForm(row, changed) {
  const path = `v1/nodes/${encodeURIComponent(row.node)}/drain`;
  let wish = "POST";
  const node = h("form", {
    class: "buttons",
    "aria-label": `Drain ${row.node}`,
    on: {
      submit: (event) => {
        event.preventDefault();
        void act(wish);
      },
    },
  });
  const outcome = h("span", { class: "problem", role: "alert" });
  const progress = h("span", { class: "soft" });
  const bar = h("progress", { "aria-label": "Drained" });
  const token = tokenField();
  const mayChange = caller.kind !== "tenant";
  let most = 0;
  let shown = "";
  let isAsking = false;

  node.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isAsking) return;
    event.preventDefault();
    idle().focus();
  });

  const act = async (method) => {
    say(outcome, "");
    if (!token.take()) return;
    try {
      await change(method, path);
      shown = "";
      changed();
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) token.refuse(error.message);
      else say(outcome, error.message);
    }
  };

  const idle = () => {
    isAsking = false;
    const button = h("button", { type: "button", class: "act", on: { click: asking } }, "Drain …");
    put(node, button, progress, outcome);
    return button;
  };

  const asking = () => {
    isAsking = true;
    wish = "POST";
    const sure = h("button", { type: "submit", class: "act main" }, `Drain ${row.node}`);
    put(
      node,
      h("p", {}, "It takes no new blocks, moves those that no other place has to Redis, and leaves the cluster."),
      token.node,
      sure,
      h("button", { type: "button", class: "act", on: { click: () => idle().focus() } }, "Keep it"),
      outcome,
    );
    (token.node.hidden ? sure : token.node.querySelector("input")).focus();
  };

  const update = ({ drain, alive }) => {
    most = Math.max(most, drain.left_blocks);
    bar.max = Math.max(1, most);
    bar.value = most - drain.left_blocks;
    const stuck = drain.stuck_blocks ? `, ${count(drain.stuck_blocks)} of them not taken by Redis` : "";
    say(
      progress,
      drain.state === "draining"
        ? `${count(drain.left_blocks)} blocks left${stuck}`
        : drain.state === "drained"
          ? "drained; its process may be stopped"
          : "",
    );
    const now = !mayChange || !alive ? "nothing" : drain.state === "none" ? "idle" : "draining";
    if (now === shown) return;
    shown = now;
    if (now === "nothing") put(node);
    else if (now === "idle") idle();
    else {
      isAsking = false;
      wish = "DELETE";
      put(node, bar, progress, token.node, h("button", { type: "submit", class: "act" }, "Call it off"), outcome);
    }
  };
  return { node, update };
}
