// Log records of nodes, live.

import { address, follow, get } from "../api.js";
import { h, put } from "../dom.js";
import { clock, moment } from "../format.js";
import { badge, button, card, choice, Feed, filterBox, heading, trouble } from "../parts.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];
const KEPT = 500;
const FIRST = 200;

export default function logs(root) {
  const asked = { level: "debug", node: "" };
  const feed = new Feed("Log records, the newest first", KEPT);
  const problem = h("div");
  const empty = h(
    "p",
    { class: "nothing" },
    "No log records that fit yet. Nodes publish them as log/LEVEL/NODE; polybus.LogHandler does that for Python's logging.",
  );
  let end = () => {};
  let seen = "";
  const pause = button("Pause", () => {
    feed.pause(!feed.paused);
    pause.textContent = feed.paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(feed.paused));
  });
  const node = filterBox(
    "Node, or probe*",
    (value) => {
      asked.node = value.trim();
      begin();
    },
    "change",
  );
  put(
    root,
    heading(
      "Logs",
      "What nodes wrote to the bus, the newest first.",
      choice(
        "Level",
        LEVELS.map((level) => [level, level === "debug" ? "all" : `${level} and worse`]),
        (value) => {
          asked.level = value;
          begin();
        },
      ),
      node,
      pause,
    ),
    problem,
    card(null, null, empty, feed.element, feed.note),
  );

  const add = (record, life) => {
    const key = `${life}${record.number}`;
    if (record.number && known.has(key)) return;
    known.add(key);
    if (known.size > 4 * KEPT) known = new Set([...known].slice(-2 * KEPT));
    empty.hidden = true;
    feed.add(line(record));
  };
  let known = new Set();
  const take = (data) => {
    if (data.missed)
      feed.add(h("li", { class: "gap" }, `${data.missed} records came faster than they could be kept`));
    for (const record of data.records || [data]) if (record.level) add(record, data.life || "");
  };
  const begin = async () => {
    end();
    const mine = (seen = JSON.stringify(asked));
    feed.clear();
    known = new Set();
    empty.hidden = false;
    try {
      take(await get("/api/logs", { ...asked, limit: FIRST }));
    } catch (error) {
      put(problem, trouble(error));
    }
    if (mine !== seen) return;
    end = follow(address("/api/logs/stream", asked), {
      open: () => put(problem),
      event: (name, data) =>
        name === "down" || data.error
          ? put(problem, trouble({ message: data.error || "the broker does not answer", next: data.next }))
          : take(data),
      broken: (error) => put(problem, trouble(error)),
    });
  };
  begin();
  return () => {
    seen = "";
    end();
  };
}

function line(record) {
  const at = record.at > 0 ? record.at : record.received_at;
  const extra = Object.entries(record.extra || {})
    .map(([name, value]) => ` ${name}=${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join("");
  return h(
    "li",
    { data: { level: record.level } },
    h("time", { title: moment(at) }, clock(at, 3)),
    h("span", {}, badge(record.level)),
    h("span", { class: "who" }, record.node),
    h(
      "span",
      { class: "text" },
      record.message,
      extra ? h("span", { class: "soft" }, extra) : null,
      record.cut ? h("span", { class: "amber" }, " (cut)") : null,
    ),
  );
}
