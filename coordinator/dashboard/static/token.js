// Asks for the admin token where a change needs one.

import { changing } from "./api.js";
import { attribute, freshId, h, say } from "./dom.js";

/** The token is kept until this page is left or reloaded, and needs to be given once. */
export function tokenField() {
  const id = freshId("token");
  const input = h("input", { id, type: "password", autocomplete: "new-password" });
  const fault = h("span", { class: "problem", id: `${id}-fault`, hidden: true });
  attribute(input, "aria-describedby", fault.id);
  const node = h(
    "div",
    { class: "field token" },
    h("label", { for: id }, "Admin token, kept until this page is left"),
    input,
    fault,
  );
  const tell = () => {
    node.hidden = !changing.needsToken;
  };
  const refuse = (message) => {
    changing.forget();
    tell();
    say(fault, message);
    fault.hidden = false;
    attribute(input, "aria-invalid", "true");
    input.focus();
  };
  tell();
  return {
    node,
    /** Whether there is one by now. */
    take() {
      fault.hidden = true;
      attribute(input, "aria-invalid", null);
      if (changing.needsToken && input.value.trim() === "") {
        refuse("A change needs the admin token.");
        return false;
      }
      if (changing.needsToken) changing.use(input.value.trim());
      input.value = "";
      tell();
      return true;
    },
    refuse,
  };
}
