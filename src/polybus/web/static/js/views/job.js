// One job: where it is, every attempt and why it failed, its body, its result.

import { act, get } from "../api.js";
import { attempt, confirm } from "../dialogs.js";
import { every, h, link, put, route } from "../dom.js";
import { moment, relative, size, span } from "../format.js";
import { badge, bodyView, button, card, facts, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

const GOING_ON = new Set(["queued", "running", "waiting"]);

const ATTEMPTS = [
  { id: "number", head: "attempt", number: true, value: (row) => row.number },
  { id: "at", head: "at", value: (row) => row.at, show: (value) => moment(value, 3) },
  { id: "worker", head: "worker", class: "wrap", value: (row) => row.worker },
  { id: "reason", head: "reason", value: (row) => row.reason, kind: () => "badge bad" },
  { id: "detail", head: "why", class: "wrap", value: (row) => row.detail },
];

export default function job(root, name) {
  const head = h("div");
  const actions = h("div", { class: "actions" });
  const known = h("div");
  const why = h("div");
  const body = h("div");
  const result = h("div");
  const history = new Table({
    caption: "Attempts that failed",
    columns: ATTEMPTS,
    key: (row) => row.number,
    sort: "number",
    empty: "No attempt has failed.",
  });
  let shown = "";
  put(
    root,
    heading(`Job ${name}`, null, head),
    why,
    actions,
    card("Facts", null, known),
    card("Attempts that failed", null, history.element),
    card("Body", null, body),
    card("Result", null, result),
  );

  const path = `/api/jobs/${encodeURIComponent(name)}`;
  const cancel = async () => {
    if (
      !(await confirm(
        `Cancel job ${name}?`,
        "It is not started any more; a worker that has it is told to stop. Its client is told.",
        "Cancel the job",
      ))
    )
      return;
    await attempt(
      () => act("POST", `${path}/cancel`),
      (answer) => `cancelled ${answer.cancelled}`,
    );
    await ask();
  };
  const retry = async (token) => {
    await attempt(
      () => act("POST", "/api/dead/retry", { jobs: [token] }),
      (answer) => retried(answer),
    );
    await ask();
  };
  const drop = async (token) => {
    if (!(await confirm(`Drop dead letter ${token}?`, "It is gone for good then, with its body.", "Drop it")))
      return;
    if (
      await attempt(
        () => act("POST", "/api/dead/drop", { jobs: [token] }),
        (answer) => `dropped ${answer.dropped}`,
      )
    )
      location.hash = route("dead");
  };
  const draw = (row) => {
    put(
      head,
      h("span", { data: { value: row.state, fact: "state" } }, badge(row.state)),
      row.dead ? h("span", {}, badge("dead")) : null,
    );
    put(
      why,
      row.reason || row.detail
        ? h(
            "div",
            { class: row.dead || !GOING_ON.has(row.state) ? "trouble" : "hint" },
            [row.reason, row.detail].filter(Boolean).join(": "),
          )
        : null,
    );
    const wanted = `${row.dead} ${GOING_ON.has(row.state)}`;
    if (actions.dataset.key !== wanted) {
      actions.dataset.key = wanted;
      put(
        actions,
        GOING_ON.has(row.state) ? button("Cancel", cancel, "danger") : null,
        row.dead
          ? [button("Retry", () => retry(row.token), "main"), button("Drop", () => drop(row.token), "danger")]
          : null,
        link("Trace it", "trace", row.token),
      );
    }
    put(
      known,
      facts([
        ["token", h("span", { class: "code" }, row.token), "token"],
        ["job id", row.job],
        ["service", row.service ? link(row.service, "service", row.service) : ""],
        ["client", row.client || "submitted by id"],
        ["dialect", row.dialect],
        ["worker", row.worker],
        ["attempt", row.attempt === null ? "" : `${row.attempt} of ${(row.retries || 0) + 1}`],
        ["guaranteed", row.guarantee ? "yes, on disk" : "no"],
        ["accepted", moment(row.accepted_at)],
        ["age", span(row.age_s)],
        ["next attempt", row.due_at ? relative(row.due_at) : ""],
        ["expires", row.expires_at ? moment(row.expires_at) : "never"],
        ["ended", moment(row.ended_at)],
        ["time limit", row.timeout_s ? span(row.timeout_s) : "none"],
        ["then", row.then.join(" → ")],
        ["group", row.group],
        ["size", size(row.bytes)],
      ]),
    );
    history.update(row.history);
    const key = JSON.stringify([row.body_base64, row.result_base64]);
    if (key === shown) return;
    shown = key;
    put(body, bodyView(row.body_base64, row.bytes));
    put(
      result,
      row.result_base64
        ? bodyView(row.result_base64)
        : h("p", { class: "nothing" }, GOING_ON.has(row.state) ? "There is none yet." : "There is none."),
    );
  };
  const ask = async () => {
    try {
      draw(await get(path));
    } catch (error) {
      put(why, trouble(error));
      delete actions.dataset.key;
      put(actions, link("Trace it: the journal may know it", "trace", name), link("All jobs", "jobs"));
    }
  };
  return every(2, ask);
}

export function retried(answer) {
  const refused = Object.entries(answer.refused || {});
  if (!refused.length) return `put back into their queues: ${answer.retried}`;
  return `put back: ${answer.retried}; refused: ${refused.length}, such as ${refused[0][0]}: ${refused[0][1]}`;
}
