// Makes elements. Whatever comes from outside becomes a text node or an attribute, never markup; the page's
// Content-Security-Policy (Trusted Types) makes a browser refuse anything else.

const SVG = "http://www.w3.org/2000/svg";

/** h("a", {class: "x", href: "nodes", on: {click}, style: {width: "3%"}, data: {n: 1}}, "text", child, null, [more]) */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, of] of Object.entries(value)) element.style.setProperty(property, of);
    } else if (name === "data") {
      for (const [key, of] of Object.entries(value)) element.dataset[key] = of;
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

/** Changes a text only where it differs, so that an idle page costs nothing and a selection stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  return element;
}

/** Replaces what is in an element. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

let ids = 0;

export function freshId(prefix) {
  ids += 1;
  return `${prefix}-${ids}`;
}
