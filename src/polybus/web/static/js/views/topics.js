// Topics and their last values, and who subscribed.

import { get } from "../api.js";
import { every, h, put, say } from "../dom.js";
import { exact, moment, number, oneLine, plural, size, span } from "../format.js";
import { bodyView, button, card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

// Values are asked for one by one, those that changed; more than these nobody reads at once.
const VALUES = 30;
const LIMIT = 500;

export default function topics(root) {
  let prefix = "";
  let chosen = "";
  const values = new Map();
  const table = new Table({
    caption: "Topics",
    key: (row) => row.topic,
    sort: "topic",
    empty: "No topic begins so, or nothing was published yet.",
    columns: [
      { id: "topic", head: "topic", isHead: true, class: "wrap", value: (row) => row.topic },
      {
        id: "value",
        head: "last value",
        class: "value",
        value: (row) => (values.has(row.topic) ? oneLine(values.get(row.topic).body_base64, 80) : ""),
      },
      { id: "age", head: "age", number: true, value: (row) => row.age_s, show: span },
      { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
      { id: "act", head: "", node: (row) => button("Show", () => choose(row.topic), "small") },
    ],
  });
  const listeners = new Table({
    caption: "Subscribers",
    key: (row) => row.subscriber,
    empty: "Nobody has subscribed over TCP.",
    columns: [
      { id: "subscriber", head: "subscriber", isHead: true, class: "wrap", value: (row) => row.subscriber },
      { id: "dialect", head: "dialect", minor: true, value: (row) => row.dialect },
      { id: "wants", head: "wants", class: "wrap", value: wants },
      {
        id: "delivered",
        head: "delivered",
        number: true,
        minor: true,
        value: (row) => row.delivered,
        show: number,
      },
      {
        id: "waiting",
        head: "waiting",
        number: true,
        minor: true,
        value: (row) => row.waiting,
        show: number,
      },
      {
        id: "dropped",
        head: "missed",
        number: true,
        value: (row) => row.dropped,
        show: number,
        kind: (value) => (value ? "amber" : ""),
      },
    ],
  });
  const title = h("h2", { tabindex: "-1" }, "Value");
  const about = h("p", { class: "sub" });
  const body = h("div");
  const below = h("section", { class: "card", hidden: true, data: { value: "" } }, title, about, body);
  const problem = h("div");
  const note = h("p", { class: "hint" });
  const box = filterBox(
    "Topics that begin with …",
    (value) => {
      prefix = value;
      ask();
    },
    "input",
  );
  put(
    root,
    heading("Topics", "The newest message of each topic, which a late subscriber gets at once.", box),
    problem,
    card(null, null, table.element, note),
    below,
    card("Subscribers", null, listeners.element),
  );

  const value = (topic) => get(`/api/last/${topic.split("/").map(encodeURIComponent).join("/")}`);
  const draw = (found) => {
    if (body.dataset.key === `${found.topic} ${found.at}`) return;
    body.dataset.key = `${found.topic} ${found.at}`;
    say(title, found.topic);
    say(
      about,
      `Published ${moment(found.at, 3)}, ${size(found.bytes)}, ${found.on_disk ? "on disk" : "in memory"}.`,
    );
    put(body, bodyView(found.body_base64));
  };
  const choose = async (topic) => {
    chosen = topic;
    try {
      draw(await value(topic));
      below.hidden = false;
      title.focus();
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  const ask = async () => {
    const wanted = prefix;
    try {
      const rows = await get("/api/last", { prefix, limit: LIMIT });
      if (wanted !== prefix) return;
      put(problem);
      put(
        note,
        rows.length >= LIMIT
          ? `These are the first ${plural(rows.length, "topic")}; a longer beginning finds others.`
          : rows.length > VALUES
            ? `Values are told of the first ${exact(VALUES)}.`
            : "",
      );
      table.update(rows);
      const shown = table.wanted().slice(0, VALUES);
      const changed = shown.filter((row) => values.get(row.topic)?.at !== row.at);
      for (const known of [...values.keys()])
        if (!shown.some((row) => row.topic === known)) values.delete(known);
      for (const row of changed) values.set(row.topic, await value(row.topic));
      if (wanted !== prefix) return;
      table.update(rows);
      if (chosen && values.has(chosen)) draw(values.get(chosen));
    } catch (error) {
      if (error.status !== 404) put(problem, trouble(error));
    }
  };
  const askWho = async () => {
    try {
      listeners.update(await get("/api/subscribers"));
    } catch {
      // The list above says so.
    }
  };
  const ends = [every(2, ask), every(5, askWho)];
  return () => ends.forEach((end) => end());
}

function wants(row) {
  const shown = row.first_prefixes.map((prefix) => prefix || "everything").join(", ");
  const more = row.prefixes - row.first_prefixes.length;
  return more > 0 ? `${shown} and ${more} more` : shown;
}
