// Jobs that have not ended, and the way to any job by its id.

import { get } from "../api.js";
import { every, h, put, route } from "../dom.js";
import { plural, size, span } from "../format.js";
import { badgeKind, button, card, choice, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

const STATES = [
  ["", "any state"],
  ["queued", "queued"],
  ["running", "running"],
  ["waiting", "waiting"],
];
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
  { id: "job", head: "job", minor: true, class: "wrap", value: (row) => row.job },
  {
    id: "service",
    head: "service",
    value: (row) => row.service,
    href: (row) => route("service", row.service),
  },
  { id: "state", head: "state", value: (row) => row.state, kind: badgeKind },
  {
    id: "attempt",
    head: "attempt",
    number: true,
    minor: true,
    value: (row) => row.attempt,
    show: (value, row) => (row.retries ? `${value} of ${row.retries + 1}` : String(value)),
  },
  { id: "age", head: "age", number: true, value: (row) => row.age_s, show: span },
  { id: "due", head: "next in", number: true, minor: true, value: (row) => row.due_in_s, show: span },
  { id: "guarantee", head: "guaranteed", minor: true, value: (row) => (row.guarantee ? "yes" : "no") },
  { id: "client", head: "client", minor: true, class: "wrap", value: (row) => row.client || "by id" },
  { id: "worker", head: "worker", minor: true, class: "wrap", value: (row) => row.worker },
  {
    id: "why",
    head: "last failure",
    minor: true,
    class: "wrap",
    value: (row) => [row.reason, row.detail].filter(Boolean).join(": "),
  },
  { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
];

export default function jobs(root) {
  const asked = { state: "", service: "" };
  const table = new Table({
    caption: "Jobs that have not ended",
    columns: COLUMNS,
    key: (row) => row.token,
    sort: "age",
    descending: true,
    empty: "No job is queued, running or waiting.",
  });
  const problem = h("div");
  const note = h("p", { class: "hint" });
  const id = h("input", {
    type: "search",
    id: "job-id",
    placeholder: "token or job id",
    autocomplete: "off",
    spellcheck: "false",
  });
  const search = h(
    "form",
    {
      class: "actions",
      submit: (event) => {
        event.preventDefault();
        if (id.value.trim()) location.hash = route("job", id.value.trim());
      },
    },
    h("label", { class: "choice", for: "job-id" }, "Show a job, also one that has ended:"),
    id,
    h("button", { class: "button" }, "Show"),
  );
  const service = h("input", {
    type: "search",
    placeholder: "any service",
    "aria-label": "Service",
    autocomplete: "off",
    spellcheck: "false",
    change: (event) => {
      asked.service = event.target.value.trim();
      ask();
    },
  });
  put(
    root,
    heading(
      "Jobs",
      "Requests with job options that have not ended, the oldest first.",
      filterBox("Filter jobs", (words) => table.filter(words)),
    ),
    problem,
    card(
      null,
      null,
      h(
        "div",
        { class: "actions" },
        choice("State", STATES, (value) => {
          asked.state = value;
          ask();
        }),
        h("label", { class: "choice" }, h("span", {}, "Service"), service),
        button("Dead letters", () => {
          location.hash = route("dead");
        }),
      ),
      table.element,
      note,
    ),
    card("Find a job", null, search),
  );
  const ask = async () => {
    try {
      const rows = await get("/api/jobs", { ...asked, limit: LIMIT });
      put(problem);
      table.update(rows);
      put(
        note,
        rows.length >= LIMIT
          ? `These are the oldest ${plural(rows.length, "job")}; state and service find others.`
          : "",
      );
    } catch (error) {
      put(problem, trouble(error));
    }
  };
  return every(2, ask);
}
