// Listening in: each thing that happens on the bus, as it happens.

import { address, follow } from "../api.js";
import { h, link, put } from "../dom.js";
import { clock, moment, size, took } from "../format.js";
import { badge, button, card, choice, Feed, filterBox, heading, trouble } from "../parts.js";

const KEPT = 300;
const WHAT = [
  "accepted",
  "dispatched",
  "replied",
  "failed",
  "expired",
  "rejected",
  "cancelled",
  "retried",
  "requeued",
  "published",
  "log",
  "worker_up",
  "worker_down",
  "node_late",
  "node_down",
  "invalid",
];
// A busy bus says more than a page can draw: what comes within a moment is drawn together, the rest is counted.
const DRAWN_EVERY_S = 0.25;
const DRAWN_AT_ONCE = 60;

export default function tap(root) {
  const asked = { service: "", what: "" };
  const feed = new Feed("What happens, the newest first", KEPT);
  const problem = h("div");
  const empty = h("p", { class: "nothing" }, "Listening …");
  let end = () => {};
  let come = [];
  let left = 0;
  const pause = button("Pause", () => {
    feed.pause(!feed.paused);
    pause.textContent = feed.paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(feed.paused));
  });
  const service = filterBox(
    "Service or topic, exactly",
    (value) => {
      asked.service = value.trim();
      begin();
    },
    "change",
  );
  put(
    root,
    heading(
      "Tap",
      "Listening in, from now on. Bodies are not shown.",
      choice("What", [["", "everything"], ...WHAT.map((what) => [what, what])], (value) => {
        asked.what = value;
        begin();
      }),
      service,
      pause,
      button("Clear", () => feed.clear()),
    ),
    problem,
    card(null, null, empty, feed.element, feed.note),
  );

  const draw = () => {
    const records = come;
    come = [];
    if (left) {
      feed.add(
        h("li", { class: "gap" }, `${left} more came in this moment; a filter shows all of one service`),
      );
      left = 0;
    }
    for (const record of records) {
      if (record.missed_before)
        feed.add(h("li", { class: "gap" }, `${record.missed_before} before this were missed`));
      feed.add(line(record));
    }
  };
  const timer = setInterval(draw, DRAWN_EVERY_S * 1000);
  const begin = () => {
    end();
    feed.clear();
    come = [];
    put(empty, "Listening …");
    empty.hidden = false;
    end = follow(address("/api/tap", asked), {
      open: () => put(problem),
      event(name, data) {
        if (name === "down" || data.error) {
          put(problem, trouble({ message: data.error || "the broker does not answer", next: data.next }));
        } else if (data.what) {
          empty.hidden = true;
          if (come.length < DRAWN_AT_ONCE) come.push(data);
          else left += 1;
        }
      },
      broken: (error) => put(problem, trouble(error)),
    });
  };
  begin();
  return () => {
    clearInterval(timer);
    end();
  };
}

function line(record) {
  const parts = [];
  if (record.client)
    parts.push(`from ${record.client}${record.client_dialect ? ` (${record.client_dialect})` : ""}`);
  if (record.worker)
    parts.push(`to ${record.worker}${record.worker_dialect ? ` (${record.worker_dialect})` : ""}`);
  if (record.attempt > 1) parts.push(`attempt ${record.attempt}`);
  if (record.age_s) parts.push(took(record.age_s));
  if (record.bytes) parts.push(size(record.bytes));
  const why = [record.reason, record.detail].filter(Boolean).join(": ");
  return h(
    "li",
    { data: { what: record.what } },
    h("time", { title: moment(record.at) }, clock(record.at, 3)),
    h("span", {}, badge(record.what)),
    h("span", { class: "who" }, record.service || "–"),
    h(
      "span",
      { class: "text" },
      record.token ? [link(record.token, "trace", record.token), " "] : null,
      parts.join(" · "),
      why ? h("span", { class: record.what === "log" ? "soft" : "red" }, ` ${why}`) : null,
    ),
  );
}
