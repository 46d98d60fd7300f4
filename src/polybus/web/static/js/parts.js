// Parts that several views are made of.

import { bytesOf, hexdump, NOTHING, size, textOf } from "./format.js";
import { attribute, h, put, say } from "./dom.js";

const KINDS = {
  alive: "good",
  serving: "good",
  up: "good",
  replied: "good",
  done: "good",
  well: "good",
  ran: "good",
  late: "warn",
  silent: "warn",
  suspended: "warn",
  congested: "warn",
  waiting: "warn",
  draining: "warn",
  expired: "warn",
  retried: "warn",
  requeued: "warn",
  cancelled: "quiet",
  skipped: "warn",
  warning: "warn",
  queued: "info",
  running: "info",
  dispatched: "info",
  info: "info",
  accepted: "quiet",
  debug: "quiet",
  published: "quiet",
  log: "quiet",
  unserved: "bad",
  gone: "bad",
  failed: "bad",
  dead: "bad",
  rejected: "bad",
  error: "bad",
  critical: "bad",
  worker_down: "bad",
  node_down: "bad",
  invalid: "bad",
  denied: "bad",
  answer_lost: "bad",
  store_sick: "bad",
};

export function badgeKind(state) {
  return `badge ${KINDS[state] || "quiet"}`;
}

export function badge(state) {
  return h("span", { class: badgeKind(state) }, state);
}

/** A card with a heading. */
export function card(title, subtitle, ...children) {
  const head = title ? [h("h2", {}, title)] : [];
  return h(
    "section",
    { class: "card" },
    head,
    subtitle ? h("p", { class: "sub" }, subtitle) : null,
    children,
  );
}

/** The heading of a view, with what stands beside it. */
export function heading(title, subtitle, ...beside) {
  return h(
    "div",
    { class: "heading" },
    h("div", {}, h("h1", { tabindex: "-1" }, title), subtitle ? h("p", { class: "sub" }, subtitle) : null),
    beside.length ? h("div", { class: "beside" }, beside) : null,
  );
}

/** A box that narrows a list; `/` goes to it. */
export function filterBox(label, onInput, event = "input") {
  const input = h("input", {
    type: "search",
    placeholder: label,
    data: { filter: "" },
    autocomplete: "off",
    spellcheck: "false",
    [event]: (happened) => onInput(happened.target.value),
  });
  return h(
    "label",
    { class: "filter" },
    h("span", { class: "hidden" }, label),
    input,
    h("kbd", { "aria-hidden": "true" }, "/"),
  );
}

export function choice(label, options, onChange, value = "") {
  const made = options.map(([key, text]) =>
    h("option", { value: key, ...(key === value ? { selected: "" } : {}) }, text),
  );
  return h(
    "label",
    { class: "choice" },
    h("span", {}, label),
    h("select", { change: (event) => onChange(event.target.value) }, made),
  );
}

export function button(text, onClick, kind = "") {
  return h("button", { type: "button", class: `button ${kind}`.trim(), click: onClick }, text);
}

/** Names and values; a value may be a node. What has no value is left out. */
export function facts(pairs) {
  const known = pairs.filter(
    ([, value]) => value !== null && value !== undefined && value !== "" && value !== NOTHING,
  );
  return h(
    "dl",
    { class: "facts" },
    known.map(([name, value, key]) =>
      h("div", { data: key ? { fact: key } : {} }, h("dt", {}, name), h("dd", {}, value)),
    ),
  );
}

/** What is not there, and what makes it. */
export function absent(error) {
  return h(
    "p",
    { class: "nothing" },
    `${sentence(error.message)}.`,
    error.next ? ` ${sentence(error.next)}.` : "",
  );
}

/** What went wrong, with the next step. */
export function trouble(error) {
  return h(
    "div",
    { class: "trouble", role: "alert" },
    h("strong", {}, sentence(error.message)),
    error.next ? h("p", {}, sentence(error.next)) : null,
  );
}

export function sentence(text) {
  const words = String(text);
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** A number with its name, and the last minutes of it as a line. */
export class Tile {
  constructor(name, title, spark, href) {
    this.value = h("b", {}, NOTHING);
    this.more = h("span", { class: "more" });
    this.spark = spark;
    const inside = [h("span", { class: "title" }, title), this.value, this.more, spark?.element];
    this.element = href
      ? h("a", { class: "tile", href, data: { tile: name } }, inside)
      : h("div", { class: "tile", data: { tile: name } }, inside);
  }

  update(value, text, more, kind = "") {
    attribute(this.element, "data-value", value ?? "");
    say(this.value, text);
    say(this.more, more || "\u00a0");
    this.element.classList.toggle("is-bad", kind === "bad");
    this.element.classList.toggle("is-warn", kind === "warn");
  }
}

/** A body's frames, as text where they are text; each can be shown as bytes. */
export function bodyView(frames, whole = null) {
  if (!frames) return h("p", { class: "nothing" }, "It is not kept.");
  if (!frames.length) return h("p", { class: "nothing" }, "It is empty.");
  const views = frames.map((frame, number) => {
    const bytes = bytesOf(frame);
    const text = textOf(bytes);
    const shown = h(
      "pre",
      { tabindex: "0", "aria-label": `Frame ${number + 1}` },
      text === null ? hexdump(bytes) : pretty(text),
    );
    const toggle =
      text === null
        ? null
        : h(
            "button",
            {
              type: "button",
              class: "small",
              "aria-pressed": "false",
              click: (event) => {
                const asHex = event.target.getAttribute("aria-pressed") !== "true";
                event.target.setAttribute("aria-pressed", String(asHex));
                shown.textContent = asHex ? hexdump(bytes) : pretty(text);
              },
            },
            "hex",
          );
    const kind = text === null ? "bytes" : "text";
    return h(
      "div",
      { class: "frame" },
      h(
        "div",
        { class: "frame-head" },
        h("span", {}, `frame ${number + 1} · ${size(bytes.length)} · ${kind}`),
        toggle,
      ),
      shown,
    );
  });
  const seen = frames.reduce((total, frame) => total + bytesOf(frame).length, 0);
  const cut =
    whole !== null && whole > seen
      ? h("p", { class: "hint" }, `The first ${size(seen)} of ${size(whole)}.`)
      : null;
  return h("div", { class: "body" }, views, cut);
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text || "(empty)";
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** A list that grows at its top and forgets its end. */
export class Feed {
  constructor(label, most) {
    this.most = most;
    this.paused = false;
    this.held = [];
    this.left = 0;
    // Not a live region: it would talk without end. Whoever wants to hear it reads it.
    this.element = h("ol", { class: "feed", "aria-label": label, tabindex: "0" });
    this.note = h("p", { class: "hint" });
  }

  add(item) {
    if (this.paused) {
      this.held.push(item);
      if (this.held.length > this.most) {
        this.held.shift();
        this.left += 1;
      }
    } else {
      this.element.prepend(item);
      while (this.element.childElementCount > this.most) this.element.lastElementChild.remove();
    }
    this.tell();
  }

  pause(wanted) {
    this.paused = wanted;
    if (!wanted) {
      const items = this.held;
      this.held = [];
      if (this.left) this.element.prepend(h("li", { class: "gap" }, `${this.left} older ones were let go`));
      this.left = 0;
      for (const item of items) this.add(item);
    }
    this.tell();
  }

  clear() {
    this.held = [];
    this.left = 0;
    put(this.element);
    this.tell();
  }

  tell() {
    const shown = this.element.childElementCount;
    const held = this.held.length + this.left;
    say(
      this.note,
      this.paused
        ? `Paused; ${held} came meanwhile.`
        : shown >= this.most
          ? `The newest ${this.most} are kept.`
          : "",
    );
  }
}
