// A table that keeps its rows: sorted by any column, filtered, never more rows than somebody asked for.

import { attribute, freshId, h, put, say } from "./dom.js";
import { exact } from "./words.js";

const ROWS_FIRST = 100;

/**
 * A column: {key, title, hint, number, text: row => string, exact: row => string, value: row => number|string,
 *            node: row => Node, sign: row => string, falling: bool}
 * text or node says what a cell shows; value what it sorts by, and is there for machines as data-value; sign, with
 * node, is what the node depends on.
 */
export class Table {
  #columns;
  #rowKey;
  #filterText;
  #detail;
  #empty;
  #what;
  #sort;
  #limit = ROWS_FIRST;
  #wanted = "";
  #rows = [];
  #shown = new Map(); // key -> {tr, cells, signs}
  #open = new Map(); // key -> {tr, update, stop, isEdited}
  #body;
  #headings = new Map();
  #more;
  #note;
  #table;
  #blank;
  #select;

  /**
   * detail: (row, {close}) => {node, update(row), stop(), isEdited()}, all but node optional: while it is edited, its
   * row stays whatever is filtered. empty: Node shown while there is no row at all.
   */
  constructor({ what, columns, rowKey, sort, filterText, detail, empty }) {
    this.#columns = columns;
    this.#rowKey = rowKey;
    this.#filterText = filterText;
    this.#detail = detail;
    this.#empty = empty;
    this.#what = what;
    this.#sort = sort;
    this.node = this.#draw();
  }

  show(rows) {
    this.#rows = rows;
    this.#update();
  }

  get rows() {
    return this.#rows;
  }

  isOpen(key) {
    return this.#open.has(key);
  }

  open(key, { focus = true } = {}) {
    const row = this.#rows.find((each) => this.#rowKey(each) === key);
    const shown = this.#shown.get(key);
    if (!row || !shown || this.#open.has(key)) return;
    const detail = this.#detail(row, { close: () => this.close(key) });
    const tr = h(
      "tr",
      { class: "detail", role: "row", on: { keydown: (event) => this.#leave(event, key) } },
      h("td", { colspan: this.#columns.length, role: "cell" }, detail.node),
    );
    shown.tr.after(tr);
    shown.tr.classList.add("is-open");
    attribute(shown.toggle, "aria-expanded", "true");
    this.#open.set(key, {
      tr,
      update: detail.update ?? (() => {}),
      stop: detail.stop ?? (() => {}),
      isEdited: detail.isEdited ?? (() => false),
    });
    if (focus) tr.querySelector("input, select, button, a")?.focus();
  }

  /** focus: on the row's name, for who was inside. */
  close(key, { focus = true } = {}) {
    const open = this.#open.get(key);
    if (!open) return;
    open.stop();
    open.tr.remove();
    this.#open.delete(key);
    const shown = this.#shown.get(key);
    shown?.tr.classList.remove("is-open");
    if (shown?.toggle) {
      attribute(shown.toggle, "aria-expanded", "false");
      if (focus) shown.toggle.focus();
    }
  }

  /** Escape closes, unless what is inside had a use for it. */
  #leave(event, key) {
    if (event.key !== "Escape" || event.defaultPrevented || !this.#open.has(key)) return;
    event.preventDefault();
    this.close(key);
  }

  stop() {
    for (const open of this.#open.values()) open.stop();
  }

  #draw() {
    const head = h("tr", { role: "row" });
    for (const column of this.#columns) {
      const button = h(
        "button",
        { type: "button", title: column.hint, on: { click: () => this.#sortBy(column) } },
        column.title,
      );
      const th = h(
        "th",
        { scope: "col", role: "columnheader", class: column.number ? "number" : null },
        column.value ? button : column.title,
      );
      if (!column.value && column.hint) th.title = column.hint;
      this.#headings.set(column.key, th);
      head.append(th);
    }
    this.#body = h("tbody", { role: "rowgroup" });
    this.#table = h(
      "table",
      { role: "table" },
      h("caption", { class: "unseen" }, this.#what),
      h("thead", { role: "rowgroup" }, head),
      this.#body,
    );
    this.#note = h("p", { class: "soft table-note", "aria-live": "polite" });
    this.#more = h("button", { type: "button", class: "quiet", on: { click: () => this.#showAll() } });
    this.#blank = h("div", { class: "blank" });
    const tools = h("div", { class: "tools" });
    if (this.#filterText) {
      const id = freshId("filter");
      const input = h("input", {
        id,
        type: "search",
        placeholder: "Filter by name",
        autocomplete: "off",
        spellcheck: "false",
      });
      input.addEventListener("input", () => {
        this.#wanted = input.value.trim().toLowerCase();
        this.#update();
      });
      tools.append(h("label", { class: "unseen", for: id }, `Filter the ${this.#what}`), input);
    }
    this.#select = h(
      "select",
      {
        "aria-label": "Sort by",
        class: "narrow-only",
        on: { change: () => this.#sortBy(this.#columns.find((each) => each.key === this.#select.value)) },
      },
      this.#columns
        .filter((each) => each.value)
        .map((each) => h("option", { value: each.key }, `Sort by ${each.title.toLowerCase()}`)),
    );
    tools.append(this.#select, this.#note);
    return h("div", { class: "table" }, tools, h("div", { class: "scroll" }, this.#table), this.#blank, this.#more);
  }

  #sortBy(column) {
    const falls = column.falling ?? Boolean(column.number);
    this.#sort = { key: column.key, falling: this.#sort.key === column.key ? !this.#sort.falling : falls };
    this.#update({ settle: true });
  }

  #showAll() {
    this.#limit = this.#limit === ROWS_FIRST ? Infinity : ROWS_FIRST;
    this.#update();
  }

  #update({ settle = false } = {}) {
    const column = this.#columns.find((each) => each.key === this.#sort.key) ?? this.#columns[0];
    const wanted = this.#rows.filter(
      (row) => !this.#wanted || this.#filterText(row).toLowerCase().includes(this.#wanted),
    );
    const sign = this.#sort.falling ? -1 : 1;
    const keyed = wanted.map((row) => ({ row, by: column.value(row), name: this.#rowKey(row) }));
    keyed.sort((a, b) => (a.by === b.by ? compare(a.name, b.name) : sign * compare(a.by, b.by)));
    const listed = keyed.slice(0, this.#limit).map((each) => each.row);

    for (const [key, th] of this.#headings) {
      attribute(th, "aria-sort", key === column.key ? (this.#sort.falling ? "descending" : "ascending") : null);
    }
    if (this.#select.value !== column.key) this.#select.value = column.key;
    // Rows do not move away under who works in them, and what somebody wrote is not lost by looking for another row.
    const isUsed = !settle && this.#body.contains(document.activeElement) && document.activeElement !== document.body;
    const keys = new Set(listed.map(this.#rowKey));
    for (const [key, shown] of [...this.#shown]) {
      if (keys.has(key) || (isUsed && this.#open.has(key)) || this.#open.get(key)?.isEdited()) continue;
      this.close(key, { focus: false });
      shown.tr.remove();
      this.#shown.delete(key);
    }
    let after = null;
    for (const row of listed) {
      const key = this.#rowKey(row);
      let shown = this.#shown.get(key);
      if (!shown) {
        shown = this.#newRow(key);
        this.#shown.set(key, shown);
        this.#body.append(shown.tr);
      }
      this.#fill(shown, row);
      if (!isUsed) {
        const place = after === null ? this.#body.firstChild : after.nextSibling;
        if (place !== shown.tr) this.#body.insertBefore(shown.tr, place);
        const open = this.#open.get(key);
        if (open && shown.tr.nextSibling !== open.tr) shown.tr.after(open.tr);
        after = open ? open.tr : shown.tr;
      }
      this.#open.get(key)?.update(row);
    }
    for (const row of this.#rows) {
      const key = this.#rowKey(row);
      if (keys.has(key) || !this.#open.has(key)) continue;
      this.#fill(this.#shown.get(key), row); // it stays, though it is not listed
      this.#open.get(key).update(row);
    }
    this.#tell(wanted.length, listed.length);
  }

  #tell(nWanted, nListed) {
    const total = this.#rows.length;
    this.#table.hidden = total === 0;
    this.#blank.hidden = total > 0;
    if (total === 0 && !this.#blank.firstChild) put(this.#blank, this.#empty);
    say(
      this.#note,
      total === 0
        ? ""
        : nWanted === 0
          ? "No name holds this."
          : nListed < total
            ? `${exact(nListed)} of ${exact(total)} ${this.#what}`
            : `${exact(total)} ${total === 1 ? this.#what.slice(0, -1) : this.#what}`,
    );
    this.#more.hidden = nWanted <= ROWS_FIRST;
    say(
      this.#more,
      this.#limit === ROWS_FIRST ? `Show all ${exact(nWanted)}` : `Show the first ${exact(ROWS_FIRST)}`,
    );
  }

  #newRow(key) {
    const tr = h("tr", { role: "row", data: { key } });
    const shown = { tr, cells: [], signs: [], toggle: null };
    this.#columns.forEach((column, index) => {
      const td = h(index === 0 ? "th" : "td", {
        class: column.number ? "number" : null,
        scope: index === 0 ? "row" : null,
        role: index === 0 ? "rowheader" : "cell",
        data: { label: column.title, column: column.key },
      });
      let place = td;
      if (index === 0 && this.#detail) {
        const toggle = h("button", {
          type: "button",
          class: "toggle",
          "aria-expanded": "false",
          on: {
            click: () => (this.#open.has(key) ? this.close(key) : this.open(key, { focus: false })),
            keydown: (event) => this.#leave(event, key),
          },
        });
        shown.toggle = toggle;
        td.append(toggle);
        place = toggle;
      }
      shown.cells.push({ td, place });
      tr.append(td);
    });
    return shown;
  }

  #fill(shown, row) {
    this.#columns.forEach((column, index) => {
      const { td, place } = shown.cells[index];
      if (column.value) attribute(td, "data-value", column.value(row));
      if (column.node) {
        const sign = column.sign(row);
        if (shown.signs[index] !== sign) {
          shown.signs[index] = sign;
          put(place, column.node(row));
        }
      } else {
        say(place, column.text(row));
      }
      if (column.exact) attribute(td, "title", column.exact(row));
    });
  }
}

function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") return a < b ? -1 : a > b ? 1 : 0;
  return a === b ? 0 : a < b ? -1 : 1;
}
