// Dead letters: look at them, send them again, or let them go.

import { act, get } from "../api.js";
import { attempt, confirm } from "../dialogs.js";
import { every, h, put, route } from "../dom.js";
import { moment, number, plural, relative, size } from "../format.js";
import { button, card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";
import { retried } from "./job.js";

const LIMIT = 1000;

const COLUMNS = [
  {
    id: "token",
    head: "token",
    isHead: true,
    class: "id",
    value: (row) => row.token,
    href: (row) => route("job", row.token),
  },
  {
    id: "service",
    head: "service",
    value: (row) => row.service,
    href: (row) => route("service", row.service),
  },
  {
    id: "at",
    head: "given up",
    value: (row) => row.at,
    show: (value) => relative(value),
    title: (row) => moment(row.at),
  },
  { id: "attempts", head: "attempts", number: true, minor: true, value: (row) => row.attempts, show: number },
  { id: "reason", head: "reason", minor: true, value: (row) => row.reason, kind: () => "badge bad" },
  { id: "detail", head: "why", class: "wrap", minor: true, value: (row) => row.detail },
  {
    id: "tried",
    head: "reasons of each attempt",
    class: "wrap",
    minor: true,
    value: (row) => told(row.history),
  },
  { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
];

/** The reasons of all attempts, those that are the same counted. */
function told(history) {
  const counts = new Map();
  for (const one of history) {
    const words = [one.reason, one.detail].filter(Boolean).join(": ");
    counts.set(words, (counts.get(words) || 0) + 1);
  }
  return [...counts].map(([words, count]) => (count > 1 ? `${count} × ${words}` : words)).join("; ");
}

export default function dead(root) {
  const chosen = h("span", { class: "soft", role: "status" });
  const retryButton = button("Retry selected", () => retry(), "main");
  const dropButton = button("Drop selected", () => drop(), "danger");
  let tokens = [];
  const table = new Table({
    caption: "Dead letters",
    columns: COLUMNS,
    key: (row) => row.token,
    sort: "at",
    descending: true,
    search: (row) =>
      `${row.token} ${row.job} ${row.service} ${row.reason} ${row.detail} ${told(row.history)}`,
    empty: "There are no dead letters.",
    onSelect: (found) => {
      tokens = found;
      retryButton.disabled = dropButton.disabled = !found.length;
      put(chosen, found.length ? `${number(found.length)} selected` : "");
    },
  });
  const problem = h("div");
  const note = h("p", { class: "hint" });
  const retry = async () => {
    const jobs = [...tokens];
    if (
      !(await confirm(
        `Retry ${plural(jobs.length, "dead letter")}?`,
        "They go back into their queues with all their attempts ahead of them.",
        "Retry",
        "main",
      ))
    )
      return;
    if (await attempt(() => act("POST", "/api/dead/retry", { jobs }), retried)) table.clearSelection();
    await ask();
  };
  const drop = async () => {
    const jobs = [...tokens];
    if (
      !(await confirm(
        `Drop ${plural(jobs.length, "dead letter")}?`,
        "They are gone for good then, with their bodies.",
        "Drop",
      ))
    )
      return;
    if (
      await attempt(
        () => act("POST", "/api/dead/drop", { jobs }),
        (answer) => `dropped ${answer.dropped}`,
      )
    )
      table.clearSelection();
    await ask();
  };
  put(
    root,
    heading(
      "Dead letters",
      "Jobs that were given up after their last attempt. A token shows everything about one.",
      filterBox("Filter dead letters", (words) => table.filter(words)),
    ),
    problem,
    card(null, null, h("div", { class: "actions" }, retryButton, dropButton, chosen), table.element, note),
  );
  const ask = async () => {
    try {
      const rows = await get("/api/dead", { limit: LIMIT });
      put(problem);
      table.update(rows);
      put(
        note,
        rows.length >= LIMIT
          ? `These are the oldest ${plural(rows.length, "dead letter")}; there are more.`
          : "",
      );
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  return every(3, ask);
}
