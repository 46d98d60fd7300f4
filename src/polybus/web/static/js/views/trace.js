// Where did my message go? The whole life of one request, read from the journal.

import { get } from "../api.js";
import { h, link, put, route } from "../dom.js";
import { legend } from "../charts.js";
import { clock, moment, size, span } from "../format.js";
import { absent, badgeKind, card, heading, trouble } from "../parts.js";
import { Table } from "../table.js";
import { waterfall } from "../waterfall.js";

const SHOWN = 50;
const RECENT = 100;

export default function trace(root, name) {
  const input = h("input", {
    type: "search",
    id: "trace-id",
    value: name,
    placeholder: "token, request id or job id",
    autocomplete: "off",
    spellcheck: "false",
    data: { filter: "" },
  });
  const search = h(
    "form",
    {
      class: "actions",
      role: "search",
      submit: (event) => {
        event.preventDefault();
        const wanted = input.value.trim();
        if (wanted && wanted !== name) location.hash = route("trace", wanted);
        else if (wanted) ask();
      },
    },
    h("label", { class: "choice", for: "trace-id" }, "Token or id"),
    input,
    h("button", { class: "button main" }, "Trace"),
  );
  const found = h("div");
  put(
    root,
    heading(
      name ? `Trace of ${name}` : "Trace",
      "The whole life of one request, across dialects, attempts and restarts of the broker.",
    ),
    search,
    found,
  );
  let over = false;
  const ask = async () => {
    put(found, h("p", { class: "nothing" }, "Reading the journal …"));
    try {
      const answer = await get(`/api/trace/${encodeURIComponent(name)}`);
      if (over) return;
      const shown = answer.requests.slice(0, SHOWN);
      const more = answer.requests.length - shown.length;
      put(
        found,
        legend([
          ["waits", "s-quiet"],
          ["at a worker", "s-main"],
          ["between attempts", "s-warn"],
          ["ended badly", "s-bad"],
        ]),
        waterfall(shown),
        more > 0 || !answer.complete
          ? h(
              "p",
              { class: "hint" },
              `There are ${more > 0 ? more : "some"} more requests that belong to it; trace one of them by its token.`,
            )
          : null,
      );
    } catch (error) {
      if (!over) put(found, error.answer?.candidates ? several(error) : unknown(error));
    }
  };
  if (name) ask();
  else recent(found);
  return () => {
    over = true;
  };
}

function unknown(error) {
  const words =
    "The newest records are in the journal after about a second; the oldest are let go after journal.keep_days.";
  return h(
    "div",
    {},
    trouble(error),
    h(
      "p",
      { class: "hint" },
      words,
      " Tokens are shown by ",
      link("tap", "tap"),
      " and ",
      link("queues", "queues"),
      ".",
    ),
  );
}

/** Several requests are called so: one of them is meant. */
function several(error) {
  const table = new Table({
    caption: "Requests that are called so",
    key: (row) => row.token,
    empty: "",
    columns: [
      {
        id: "token",
        head: "token",
        isHead: true,
        class: "id",
        value: (row) => row.token,
        href: (row) => route("trace", row.token),
      },
      { id: "request_id", head: "request id", class: "wrap", value: (row) => row.request_id },
      { id: "service", head: "service", value: (row) => row.service },
      { id: "client", head: "client", minor: true, class: "wrap", value: (row) => row.client },
      { id: "at", head: "at", value: (row) => row.at, show: (value) => moment(value) },
    ],
  });
  table.update(error.answer.candidates);
  return card("Which of them?", `${error.message}; ${error.next}.`, table.element);
}

/** Without a name: what is unanswered now, and what ended lately. */
async function recent(element) {
  const now = new Table({
    caption: "Unanswered requests",
    key: (row) => row.token,
    sort: "age",
    descending: true,
    most: 20,
    empty: "Every request is answered.",
    columns: [
      {
        id: "token",
        head: "token",
        isHead: true,
        class: "id",
        value: (row) => row.token,
        href: (row) => route("trace", row.token),
      },
      { id: "service", head: "service", value: (row) => row.service },
      { id: "state", head: "state", value: (row) => row.state, kind: badgeKind },
      { id: "age", head: "age", number: true, value: (row) => row.age_s, show: span },
      { id: "bytes", head: "size", number: true, minor: true, value: (row) => row.bytes, show: size },
    ],
  });
  const past = new Table({
    caption: "Ended lately",
    key: (row) => row.token,
    most: 50,
    empty: "The table 'traces' has no rows.",
    columns: [
      {
        id: "token",
        head: "token",
        isHead: true,
        class: "id",
        value: (row) => row.token,
        href: (row) => route("trace", row.token),
      },
      { id: "service", head: "service", value: (row) => row.service },
      { id: "outcome", head: "outcome", value: (row) => row.outcome, kind: badgeKind },
      { id: "reason", head: "reason", minor: true, value: (row) => row.reason },
      { id: "at", head: "ended", value: (row) => row.finished_at, show: (value) => clock(value, 3) },
      { id: "attempts", head: "attempts", number: true, minor: true, value: (row) => row.attempts },
    ],
  });
  put(
    element,
    card("Unanswered now", null, now.element),
    card("Ended lately", "From the table traces, the newest first.", past.element),
  );
  const fill = async (table, path, parameters) => {
    try {
      const answer = await get(path, parameters);
      table.update(Array.isArray(answer) ? answer : answer.rows || []);
    } catch (error) {
      put(table.element, absent(error));
    }
  };
  await Promise.all([fill(now, "/api/requests"), fill(past, "/api/history/traces", { limit: RECENT })]);
}
