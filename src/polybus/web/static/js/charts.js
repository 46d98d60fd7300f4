// Lines over time as SVG, drawn again in place with each look.
//
// A drawing is stretched to the width that there is, and its lines keep their strength; what is written stands
// beside it as HTML, as large on a phone as on a desk.  Each has its content in words for those who do not see it.

import { clock, NOTHING } from "./format.js";
import { attribute, h, put, s, say } from "./dom.js";
import { hideTip, showTip } from "./tip.js";

const WIDTH = 1000;
const HEIGHT = 100;
// Labels at the end of lines are at least so far apart, of 100.
const APART = 12;
const MOST_DECADES = 5;
// Ten microseconds: nobody waits for less.
const LEAST_DECADE = -5;
// What the time of an axis needs, in pixels.
const STAMP_PX = 74;

/** A small line without axes. */
export class Spark {
  constructor(label, kind = "s-main") {
    this.label = label;
    this.path = s("path", { class: `line ${kind}` });
    this.area = s("path", { class: `under ${kind}` });
    this.svg = s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      this.area,
      this.path,
    );
    this.element = h("div", { class: "spark" }, this.svg);
  }

  /** Points of the last minutes; null where nothing is known. */
  update(points, pick, begin, end, write) {
    const known = points.filter((point) => point && pick(point) !== null && pick(point) !== undefined);
    const most = Math.max(...known.map(pick), 0);
    const top = most * 1.1 || 1;
    const drawn = points.map((point) => {
      const value = point ? pick(point) : null;
      if (value === null || value === undefined) return null;
      return [((point.at - begin) / (end - begin)) * WIDTH, HEIGHT - (value / top) * HEIGHT];
    });
    attribute(this.path, "d", lineOf(drawn));
    attribute(this.area, "d", areaOf(drawn));
    if (!known.length) return;
    const now = write(pick(known[known.length - 1]));
    attribute(this.svg, "aria-label", `${this.label}: now ${now}, at most ${write(most)}`);
  }
}

function lineOf(points) {
  let path = "";
  let isOpen = false;
  for (const point of points) {
    if (point) path += `${isOpen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(2)}`;
    isOpen = Boolean(point);
  }
  return path;
}

function areaOf(points) {
  let path = "";
  let run = [];
  for (const point of [...points, null]) {
    if (point) {
      run.push(point);
      continue;
    }
    if (run.length > 1) {
      path +=
        `M${run[0][0].toFixed(1)} ${HEIGHT}` +
        run.map(([x, y]) => `L${x.toFixed(1)} ${y.toFixed(2)}`).join("") +
        `L${run[run.length - 1][0].toFixed(1)} ${HEIGHT}Z`;
    }
    run = [];
  }
  return path;
}

/** Lines over time, on a linear or a logarithmic scale.
 *
 * series: [{name, kind, pick(point)}]; write(value) is how a value is written; `filled` fills below the first. */
export class Chart {
  constructor({ title, series, write, log = false, filled = false, low = false }) {
    Object.assign(this, { title, series, write, log, filled });
    this.points = [];
    this.left = h("div", { class: "left", "aria-hidden": "true" });
    this.right = h("div", { class: "right", "aria-hidden": "true" });
    this.below = h("div", { class: "below", "aria-hidden": "true" });
    this.grid = s("g");
    this.lines = series.map((one) => s("path", { class: `line ${one.kind}` }));
    this.under = s("path", { class: `under ${series[0].kind}` });
    this.cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
      this.grid,
      this.under,
      [...this.lines].reverse(),
      this.cursor,
    );
    this.area = h(
      "div",
      {
        class: "area",
        pointermove: (event) => this.point(event),
        pointerdown: (event) => this.point(event),
        pointerleave: () => this.leave(),
      },
      this.svg,
    );
    this.wait = h("p", { class: "waiting" }, "");
    this.area.append(this.wait);
    this.element = h(
      "div",
      { class: `plot${low ? " low" : ""}${series.length > 1 ? "" : " plain"}` },
      this.left,
      this.area,
      this.right,
      this.below,
    );
  }

  update(points, begin, end, waiting = "Waiting for the first seconds …") {
    Object.assign(this, { points, begin, end });
    const values = points
      .flatMap((point) => (point ? this.series.map((one) => one.pick(point)) : []))
      .filter((value) => value !== null && value !== undefined);
    this.wait.hidden = values.length > 0;
    say(this.wait, waiting);
    this.ticks = this.log ? decades(values) : ticks(Math.max(...values, 0));
    const drawn = this.series.map((one) =>
      points.map((point) => {
        const value = point ? one.pick(point) : null;
        return value === null || value === undefined ? null : [this.x(point.at), this.y(value)];
      }),
    );
    drawn.forEach((line, index) => attribute(this.lines[index], "d", lineOf(line)));
    attribute(this.under, "d", this.filled ? areaOf(drawn[0]) : "");
    this.axes(drawn, values);
    this.describe(values);
  }

  x(at) {
    return ((at - this.begin) / (this.end - this.begin)) * WIDTH;
  }

  y(value) {
    const [low, high] = [this.ticks[0], this.ticks[this.ticks.length - 1]];
    if (!this.log) return HEIGHT - (value / high) * HEIGHT;
    const place = (Math.log10(Math.max(value, low)) - Math.log10(low)) / (Math.log10(high) - Math.log10(low));
    return HEIGHT - place * HEIGHT;
  }

  axes(drawn, values) {
    const isCut = this.log && Math.min(...values) < this.ticks[0] * 0.999;
    const key = `${this.ticks.join()} ${isCut}`;
    if (key !== this.drawnTicks) {
      this.drawnTicks = key;
      put(
        this.grid,
        this.ticks.map((value, index) =>
          s("line", {
            class: index ? "grid" : "base",
            x1: 0,
            x2: WIDTH,
            y1: this.y(value),
            y2: this.y(value),
          }),
        ),
      );
      put(
        this.left,
        this.ticks.map((value, index) =>
          placed((isCut && !index ? "≤ " : "") + this.write(value), "bottom", 100 - this.y(value)),
        ),
      );
    }
    const stamps = timeTicks(this.begin, this.end, Math.max(2, Math.floor(this.area.clientWidth / STAMP_PX)));
    put(
      this.below,
      stamps.map(([at, text]) => placed(text, "left", (this.x(at) / WIDTH) * 100)),
    );
    if (this.series.length < 2) return;
    const ends = this.series
      .map((one, index) => ({ one, y: drawn[index].filter(Boolean).pop()?.[1] }))
      .filter((end) => end.y !== undefined);
    ends.sort((one, other) => one.y - other.y);
    ends.forEach((end, index) => {
      if (index) end.y = Math.max(end.y, ends[index - 1].y + APART);
    });
    const over = ends.length ? Math.max(0, ends[ends.length - 1].y - HEIGHT) : 0;
    put(
      this.right,
      ends.map(({ one, y }) => {
        const label = placed(one.name, "bottom", 100 - Math.max(0, y - over));
        label.className = one.kind;
        return label;
      }),
    );
  }

  describe(values) {
    if (!values.length) return attribute(this.svg, "aria-label", `${this.title}: nothing yet`);
    const last = [...this.points].reverse().find(Boolean);
    const now = this.series.map((one) => `${one.name} ${this.value(one, last)}`).join(", ");
    attribute(
      this.svg,
      "aria-label",
      `${this.title}, ${clock(this.begin)} to ${clock(this.end)}. Last: ${now}. Highest: ${this.write(Math.max(...values))}.`,
    );
    return undefined;
  }

  value(one, point) {
    const value = one.pick(point);
    return value === null || value === undefined ? NOTHING : this.write(value);
  }

  point(event) {
    const box = this.area.getBoundingClientRect();
    const at = this.begin + ((event.clientX - box.left) / box.width) * (this.end - this.begin);
    let best = null;
    for (const point of this.points) {
      if (point && (!best || Math.abs(point.at - at) < Math.abs(best.at - at))) best = point;
    }
    if (!best) return;
    attribute(this.cursor, "x1", this.x(best.at));
    attribute(this.cursor, "x2", this.x(best.at));
    attribute(this.cursor, "visibility", "visible");
    showTip(
      event,
      [clock(best.at), ...this.series.map((one) => `${one.name}  ${this.value(one, best)}`)].join("\n"),
    );
  }

  leave() {
    attribute(this.cursor, "visibility", "hidden");
    hideTip();
  }
}

function placed(text, side, percent) {
  const label = h("span", {}, text);
  label.style.setProperty(side, `${percent}%`);
  return label;
}

/** What the colours mean. */
export function legend(entries) {
  return h(
    "div",
    { class: "legend" },
    entries.map(([name, kind]) => h("span", {}, h("i", { class: kind }), name)),
  );
}

// -- axes -----------------------------------------------------------------------------------------

/** Values from zero for an axis that ends at or above `most`: steps of 1, 2 or 5. */
function ticks(most) {
  if (!(most > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(most / 3));
  const step = power * [1, 2, 5, 10, 20].find((factor) => most / (power * factor) <= 4.001);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, index) => step * index);
}

/** Powers of ten around some values, in seconds; what is shorter than the least lies at the bottom. */
function decades(values) {
  const known = values.filter((value) => value > 0);
  if (!known.length) return [0.001, 0.01];
  const high = Math.max(Math.ceil(Math.log10(Math.max(...known)) - 1e-9), LEAST_DECADE + 1);
  const low = Math.min(Math.floor(Math.log10(Math.min(...known)) + 1e-9), high - 1);
  const least = Math.max(low, high - MOST_DECADES, LEAST_DECADE);
  return Array.from({ length: high - least + 1 }, (_, index) => 10 ** (least + index));
}

/** Round times between two others, and how they are written. */
function timeTicks(begin, end, most) {
  const steps = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const step =
    steps.find((one) => (end - begin) / one <= most) || 86400 * Math.ceil((end - begin) / 86400 / most);
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
    const text = clock(at);
    found.push([at, step < 60 ? text : text.slice(0, 5)]);
  }
  return found;
}
