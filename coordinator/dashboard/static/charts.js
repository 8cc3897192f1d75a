// Small pictures: bars of HTML, lines of SVG. Each says in words what it shows, for who does not see it.

import { attribute, h, put, say, svg } from "./dom.js";
import { TIERS, bytes, count, duration, percent, tokensPerSecond } from "./words.js";

/** Parts of a whole beside each other; a part is {key, label, value}. What is left of whole stays empty. */
export function stack(parts, whole, { label, words = count } = {}) {
  const shares = parts.filter((part) => part.value > 0);
  const told = parts.map((part) => `${part.label} ${words(part.value)}, ${percent(part.value, whole)}`).join("; ");
  return h(
    "div",
    {
      class: "stack",
      role: "img",
      "aria-label": `${label}: ${whole ? told : "nothing yet"}`,
      title: whole ? told : "nothing yet",
    },
    shares.map((part) =>
      h("span", { class: `part of-${part.key}`, style: { width: `${(100 * part.value) / whole}%` } }),
    ),
  );
}

export function tokenParts(tokens) {
  return TIERS.map(({ key, label }) => ({ key, label, value: tokens[key] }));
}

/** How full: used of whole, with marks for what is reserved and where the limit is. */
export function meter({ used, whole, reserved = 0, label }) {
  const share = whole ? Math.min(1, used / whole) : 0;
  const told = `${label}: ${bytes(used)}${whole ? ` of ${bytes(whole)}, ${percent(used, whole)}` : ", no limit"}${reserved ? `, ${bytes(reserved)} reserved` : ""}`;
  return h(
    "div",
    { class: whole ? "meter" : "meter is-open-ended", role: "img", "aria-label": told, title: told },
    h("span", { class: share > 0.98 ? "fill is-full" : "fill", style: { width: `${100 * share}%` } }),
    reserved && whole
      ? h("span", { class: "mark", style: { left: `${Math.min(100, (100 * reserved) / whole)}%` } })
      : null,
  );
}

const WIDTH = 600;
const HEIGHT = 96;
const SPANS_S = [60, 120, 300, 600];

/** Tokens found by tier, over the last minutes; a readout below follows pointer and arrow keys. */
export class Flow {
  #points = [];
  #at = null;

  constructor() {
    this.#at = null;
    this.picture = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      class: "flow",
      role: "img",
      tabindex: "0",
    });
    this.readout = h("p", { class: "soft readout" });
    this.spoken = h("p", { class: "unseen", role: "status" }); // what was read by a key, and not what then moves on
    this.from = h("span");
    this.axis = h("div", { class: "axis soft" }, this.from, h("span", {}, "now"));
    this.top = h("p", { class: "soft chart-top" });
    this.node = h("div", { class: "chart" }, this.top, this.picture, this.axis, this.readout, this.spoken);
    this.picture.addEventListener("pointermove", (event) => {
      const box = this.picture.getBoundingClientRect();
      this.#look(this.#nearest((event.clientX - box.left) / box.width));
    });
    this.picture.addEventListener("pointerleave", () => this.#look(null));
    this.picture.addEventListener("blur", () => this.#look(null));
    this.picture.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.#points.length) return;
      event.preventDefault();
      const from = this.#at ?? this.#points.length;
      this.#look(Math.max(0, Math.min(this.#points.length - 1, from + step)));
      say(this.spoken, this.readout.textContent);
    });
  }

  /** The time shown is the shortest of a few that holds all points. */
  show(points) {
    this.#points = points;
    const oldest = points.length ? points[0].age_s : 0;
    this.span = SPANS_S.find((span) => oldest <= span) ?? SPANS_S.at(-1);
    say(this.from, `${this.span / 60} min ago`);
    this.#draw();
  }

  #x(point) {
    return WIDTH * Math.max(0, 1 - point.age_s / this.span);
  }

  #draw() {
    const points = this.#points;
    const rate = (point, key) => point.tokens[key] / point.seconds;
    const top = Math.max(1, ...points.map((point) => point.tokens.asked / point.seconds));
    const floor = points.map(() => 0);
    const areas = TIERS.map(({ key }) => {
      const below = floor.map((y) => y);
      points.forEach((point, index) => {
        floor[index] += rate(point, key);
      });
      const y = (value) => (HEIGHT - (HEIGHT - 2) * (value / top)).toFixed(1);
      const path = [
        ...points.map((point, index) => `${this.#x(point).toFixed(1)},${y(floor[index])}`),
        ...points.map((point, index) => `${this.#x(point).toFixed(1)},${y(below[index])}`).reverse(),
      ];
      return svg("polygon", { class: `area of-${key}`, points: path.join(" ") });
    });
    const asked = points.reduce((sum, point) => sum + point.tokens.asked, 0);
    const missed = points.reduce((sum, point) => sum + point.tokens.missed, 0);
    attribute(
      this.picture,
      "aria-label",
      asked
        ? `Tokens asked for in the last ${this.span / 60} minutes: ${count(asked)}, of which ${percent(asked - missed, asked)} were found. Arrow keys read single moments.`
        : "No tokens were asked for of late.",
    );
    const cursor =
      this.#at !== null && points[this.#at]
        ? svg("line", {
            class: "cursor",
            x1: this.#x(points[this.#at]),
            x2: this.#x(points[this.#at]),
            y1: 0,
            y2: HEIGHT,
          })
        : null;
    const isDrawn = points.length > 1;
    put(this.picture, isDrawn ? areas : null, cursor);
    for (const part of [this.picture, this.axis, this.top]) part.toggleAttribute("hidden", !isDrawn);
    say(this.top, asked ? `at most ${tokensPerSecond(top)}` : "");
    this.#tell(asked, missed);
  }

  #tell(asked, missed) {
    const point = this.#at === null ? null : this.#points[this.#at];
    if (point) {
      const parts = TIERS.map(
        ({ key, label }) => `${label.toLowerCase()} ${count(point.tokens[key] / point.seconds)}`,
      );
      say(
        this.readout,
        `${duration(point.age_s)} ago: asked ${tokensPerSecond(point.tokens.asked / point.seconds)}; ${parts.join(", ")}`,
      );
    } else if (this.#points.length < 2) {
      say(this.readout, "History begins when this coordinator starts; the first points come after ten seconds.");
    } else {
      say(
        this.readout,
        asked
          ? `${percent(asked - missed, asked)} of ${count(asked)} tokens found in this time`
          : "Nothing was asked for in this time.",
      );
    }
  }

  #nearest(share) {
    let best = null;
    this.#points.forEach((point, index) => {
      const distance = Math.abs(this.#x(point) / WIDTH - share);
      if (best === null || distance < best.distance) best = { index, distance };
    });
    return best?.index ?? null;
  }

  #look(index) {
    if (index === this.#at) return;
    this.#at = index;
    this.#draw();
  }
}

const HEIGHTS = [1, 0.75, 0.5, 0.25, 0];

/** A line over a horizontal axis. points: [x, y] with y of 0 to 1; mark: {x, label}, where we are. */
export function curve({ points, xMax, label, mark, xWords }) {
  const left = `${(100 * mark.x) / xMax}%`;
  const place = ([x, y]) => `${((WIDTH * x) / xMax).toFixed(1)},${(HEIGHT - HEIGHT * y).toFixed(1)}`;
  return h(
    "div",
    { class: "chart curve" },
    h(
      "div",
      { class: "marks", "aria-hidden": "true" },
      h("span", { class: mark.x > xMax / 2 ? "is-left" : null, style: { left } }, mark.label),
    ),
    h(
      "div",
      { class: "heights soft", "aria-hidden": "true" },
      HEIGHTS.map((y) => h("span", { style: { top: `${100 * (1 - y)}%` } }, `${100 * y} %`)),
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        class: "flow",
        role: "img",
        "aria-label": label,
      },
      HEIGHTS.slice(0, -1).map((y) =>
        svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * y, y2: HEIGHT * y }),
      ),
      points.length
        ? svg("polygon", {
            class: "area of-hot is-faint",
            points: [`0,${HEIGHT}`, ...points.map(place), `${place([points.at(-1)[0], 0])}`].join(" "),
          })
        : null,
      svg("polyline", { class: "line", points: points.map(place).join(" ") }),
      svg("line", { class: "cursor", x1: (WIDTH * mark.x) / xMax, x2: (WIDTH * mark.x) / xMax, y1: 0, y2: HEIGHT }),
    ),
    h("div", { class: "axis soft" }, h("span", {}, "0"), h("span", {}, xWords(xMax))),
  );
}
