// A table that stays itself while its rows change every second: a row keeps its place in the document, its focus and
// its selection for as long as its key is there, and a cell is written only if it says something new.
//
// A column: {id, head, value(row), show(value, row), href(row), kind(value, row), number, minor, node(row), title(row)}
// `value` is what is sorted by and what stands in data-value; `node` makes a cell's content once, for buttons.

import { attribute, h, put, say } from "./dom.js";
import { exact, NOTHING } from "./format.js";

// More rows than people read; the rest is counted.
const MOST_ROWS = 200;

export class Table {
  constructor({
    caption,
    columns,
    key,
    sort = "",
    descending = false,
    empty,
    search,
    most = MOST_ROWS,
    onSelect,
  }) {
    Object.assign(this, { columns, key, sort, descending, search, most, onSelect });
    this.rows = [];
    this.words = "";
    this.places = new Map();
    this.selected = new Set();
    this.heads = columns.map((column) => this.head(column));
    this.all = h("input", {
      type: "checkbox",
      "aria-label": "Select all that are listed",
      change: () => this.selectAll(),
    });
    const first = onSelect ? [h("th", { scope: "col", class: "pick" }, this.all)] : [];
    this.body = h("tbody");
    this.table = h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, first, this.heads)),
      this.body,
    );
    this.scroll = h(
      "div",
      { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
      this.table,
    );
    this.nothing = h("p", { class: "nothing" }, empty);
    this.more = h("p", { class: "hint", hidden: true });
    this.element = h("div", { class: "table" }, this.scroll, this.nothing, this.more);
    this.emptyText = empty;
    this.update([]);
    this.scroll.hidden = true;
    say(this.nothing, "…");
  }

  head(column) {
    const classes = [column.number ? "n" : "", column.minor ? "minor" : ""].join(" ").trim();
    const cell = h("th", { scope: "col", class: classes || null, data: { col: column.id } });
    if (!column.value || column.node) {
      cell.append(column.head ? column.head : h("span", { class: "hidden" }, "Actions"));
      return cell;
    }
    cell.append(
      h("button", { type: "button", class: "sorter", click: () => this.sortBy(column) }, column.head),
    );
    return cell;
  }

  sortBy(column) {
    if (this.sort === column.id) this.descending = !this.descending;
    else Object.assign(this, { sort: column.id, descending: Boolean(column.number) });
    this.draw();
  }

  /** Show only rows that contain these words. */
  filter(words) {
    this.words = words.trim().toLowerCase();
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const wanted = this.wanted();
    const shown = wanted.slice(0, this.most);
    const focused = document.activeElement;
    const keys = new Set();
    let place = this.body.firstElementChild;
    for (const row of shown) {
      const key = unused(String(this.key(row)), keys);
      keys.add(key);
      const line = this.places.get(key) || this.line(key, row);
      this.write(line, row);
      if (line.element === place) place = place.nextElementSibling;
      else this.body.insertBefore(line.element, place);
    }
    for (const [key, line] of this.places) {
      if (keys.has(key)) continue;
      line.element.remove();
      this.places.delete(key);
      this.selected.delete(key);
    }
    // A row that moved has lost the focus.
    if (focused && focused !== document.activeElement && this.body.contains(focused))
      focused.focus({ preventScroll: true });
    this.finish(wanted.length, shown.length);
  }

  wanted() {
    const column = this.columns.find((one) => one.id === this.sort);
    let rows = this.words ? this.rows.filter((row) => this.fits(row)) : this.rows;
    if (column) {
      const way = this.descending ? -1 : 1;
      rows = [...rows].sort((one, other) => way * order(column.value(one), column.value(other), way));
    }
    return rows;
  }

  fits(row) {
    const words = this.search
      ? this.search(row)
      : this.columns.map((column) => column.value?.(row)).join(" ");
    return words.toLowerCase().includes(this.words);
  }

  finish(found, shown) {
    for (const [index, column] of this.columns.entries()) {
      const sorted = column.id === this.sort ? (this.descending ? "descending" : "ascending") : null;
      attribute(this.heads[index], "aria-sort", sorted);
    }
    this.scroll.hidden = !shown;
    this.nothing.hidden = Boolean(shown);
    say(
      this.nothing,
      this.rows.length && !found ? `None of ${exact(this.rows.length)} fits the filter.` : this.emptyText,
    );
    this.more.hidden = found <= shown;
    say(this.more, `… and ${exact(found - shown)} more; the filter finds them.`);
    this.tellSelection();
  }

  line(key, row) {
    const cells = this.columns.map((column) => {
      const classes = [column.number ? "n" : "", column.minor ? "minor" : "", column.class || ""]
        .join(" ")
        .trim();
      const tag = column.isHead ? "th" : "td";
      const cell = h(tag, {
        class: classes || null,
        scope: column.isHead ? "row" : null,
        data: { col: column.id },
      });
      if (column.node) put(cell, column.node(row));
      return cell;
    });
    const pick = this.onSelect
      ? h("input", {
          type: "checkbox",
          "aria-label": `Select ${key}`,
          change: (event) => this.select(key, event.target.checked),
        })
      : null;
    const element = h("tr", { data: { key } }, pick ? h("td", { class: "pick" }, pick) : null, cells);
    const line = { element, cells, pick };
    this.places.set(key, line);
    return line;
  }

  write(line, row) {
    for (const [index, column] of this.columns.entries()) {
      const cell = line.cells[index];
      if (column.node) {
        column.refresh?.(cell.firstElementChild, row);
        continue;
      }
      const value = column.value(row);
      const text = column.show
        ? column.show(value, row)
        : value === null || value === undefined || value === ""
          ? NOTHING
          : value;
      attribute(cell, "data-value", value === null || value === undefined ? "" : value);
      const href = column.href?.(row);
      if (href) {
        if (!cell.firstElementChild) put(cell, h("a", { href }));
        attribute(cell.firstElementChild, "href", href);
      }
      const kind = column.kind?.(value, row) || "";
      if (kind.startsWith("badge")) {
        if (!cell.firstElementChild) put(cell, h("span"));
        attribute(cell.firstElementChild, "class", kind);
      } else if (column.kind) {
        cell.classList.toggle("red", kind === "red");
        cell.classList.toggle("amber", kind === "amber");
      }
      say(cell.firstElementChild || cell, text);
      if (column.title) attribute(cell, "title", column.title(row));
    }
  }

  // -- selection ----------------------------------------------------------------------------------

  select(key, wanted) {
    if (wanted) this.selected.add(key);
    else this.selected.delete(key);
    this.tellSelection();
  }

  selectAll() {
    for (const [key, line] of this.places) {
      line.pick.checked = this.all.checked;
      if (this.all.checked) this.selected.add(key);
      else this.selected.delete(key);
    }
    this.tellSelection();
  }

  clearSelection() {
    this.all.checked = false;
    this.selectAll();
  }

  tellSelection() {
    if (!this.onSelect) return;
    this.all.checked = this.selected.size > 0 && this.selected.size === this.places.size;
    this.all.indeterminate = this.selected.size > 0 && this.selected.size < this.places.size;
    this.onSelect([...this.selected]);
  }
}

/** Two of the same name are two rows. */
function unused(key, keys) {
  let found = key;
  for (let number = 2; keys.has(found); number += 1) found = `${key} (${number})`;
  return found;
}

/** Nothing comes last, whichever way it is sorted. */
function order(one, other, way) {
  const without = (value) => value === null || value === undefined || value === "";
  if (without(one) || without(other)) return way * (Number(without(one)) - Number(without(other)));
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
