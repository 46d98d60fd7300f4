// Schedules: what runs again and again, when next, and how it went.

import { act, get } from "../api.js";
import { attempt, confirm } from "../dialogs.js";
import { every, h, put, route, say } from "../dom.js";
import { moment, plural, relative, span } from "../format.js";
import { badgeKind, button, card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

// Last runs are asked for one by one; nobody reads more of them at once.
const ASKED = 30;

const RUNS = [
  { id: "at", head: "at", value: (row) => row.at, show: (value) => moment(value, 3) },
  { id: "what", head: "what", value: (row) => row.what, kind: badgeKind },
  { id: "due", head: "was due", value: (row) => row.due_at, show: (value) => moment(value, 3) },
  { id: "missed", head: "missed", number: true, value: (row) => row.missed },
  {
    id: "token",
    head: "job",
    class: "id",
    value: (row) => row.token,
    href: (row) => (row.token ? route("trace", row.token) : null),
  },
];

export default function schedules(root) {
  const lastRuns = new Map();
  let chosen = "";
  const table = new Table({
    caption: "Schedules",
    key: (row) => row.key,
    sort: "next",
    empty: "There are no schedules; 'polybus schedule add' makes one.",
    columns: [
      { id: "key", head: "schedule", isHead: true, class: "wrap", value: (row) => row.key },
      { id: "queue", head: "queue", value: (row) => row.queue, href: (row) => route("service", row.queue) },
      {
        id: "when",
        head: "when",
        value: (row) => (row.every_s ? `every ${span(row.every_s)}` : `${row.cron} (${row.timezone})`),
      },
      {
        id: "next",
        head: "next",
        value: (row) => row.next_at,
        show: (value) => relative(value),
        title: (row) => moment(row.next_at),
      },
      {
        id: "last",
        head: "last run",
        minor: true,
        value: (row) => lastRuns.get(row.key)?.at ?? null,
        show: (value, row) => (value ? `${relative(value)}, ${lastRuns.get(row.key).what}` : "none yet"),
      },
      {
        id: "left",
        head: "runs left",
        number: true,
        minor: true,
        value: (row) => row.runs_left,
        show: (value) => (value === null ? "∞" : String(value)),
      },
      {
        id: "message",
        head: "body",
        minor: true,
        class: "value",
        value: (row) => (row.message.length > 60 ? `${row.message.slice(0, 60)}…` : row.message),
      },
      {
        id: "act",
        head: "",
        node: (row) =>
          h(
            "span",
            { class: "buttons-inline" },
            button("Runs", () => choose(row.key), "small"),
            " ",
            button("Remove", () => remove(row), "small"),
          ),
      },
    ],
  });
  const runs = new Table({
    caption: "Runs",
    columns: RUNS,
    key: (row) => `${row.at} ${row.due_at}`,
    empty: "It has not run yet.",
    most: 100,
  });
  const title = h("h2", { tabindex: "-1" }, "Runs");
  const below = h("section", { class: "card", hidden: true }, title, runs.element);
  const problem = h("div");
  put(
    root,
    heading(
      "Schedules",
      "Jobs that the broker starts again and again, by interval or by cron.",
      filterBox("Filter schedules", (words) => table.filter(words)),
    ),
    problem,
    card(null, null, table.element),
    below,
  );
  const path = (key) => `/api/schedules/${encodeURIComponent(key)}`;
  const choose = async (key) => {
    chosen = key;
    below.hidden = false;
    say(title, `Runs of ${key}`);
    await askRuns(key);
    title.focus();
  };
  const askRuns = async (key) => {
    const found = await get(`${path(key)}/runs`, { limit: key === chosen ? 100 : 1 });
    if (found.length) lastRuns.set(key, found[0]);
    if (key === chosen) runs.update(found);
  };
  const remove = async (row) => {
    if (
      !(await confirm(
        `Remove schedule ${row.key}?`,
        `It does not run any more. It makes jobs for ${row.queue}; those that run go on.`,
        "Remove it",
      ))
    )
      return;
    await attempt(
      () => act("DELETE", path(row.key)),
      () => `removed ${row.key}`,
    );
    await ask();
  };
  const ask = async () => {
    try {
      const rows = await get("/api/schedules");
      put(problem);
      table.update(rows);
      for (const row of rows.slice(0, ASKED)) await askRuns(row.key);
      table.update(rows);
      if (rows.length > ASKED)
        put(
          problem,
          h("p", { class: "hint" }, `The last runs are told of the first ${plural(ASKED, "schedule")}.`),
        );
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  return every(5, ask);
}
