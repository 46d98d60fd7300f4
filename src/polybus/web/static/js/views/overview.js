// Is my bus fine, what is slow, what fails, where did my message go.

import { get } from "../api.js";
import { Chart, legend, Spark } from "../charts.js";
import { every, h, link, put, route } from "../dom.js";
import { exact, number, plural, rate, span, took } from "../format.js";
import { live, period, watch } from "../live.js";
import { card, heading, Tile } from "../parts.js";
import { Table } from "../table.js";
import { serviceColumns } from "./services.js";
import { MOST_DEAD, verdict } from "../verdict.js";

const LISTED = 8;
const WITHIN_S = 60;
const DRAWN = [
  ["requests", "accepted_per_s", rate],
  ["published", "published_per_s", rate],
  ["latency", "p95_s", took],
  ["failing", "failing_per_s", rate],
  ["unanswered", "requests", number],
  ["queued", "queued", number],
  ["workers", "workers", number],
];

export default function overview(root) {
  const facts = { status: null, pipeline: null, dead: null };
  const sparks = {
    requests: new Spark("Requests per second"),
    published: new Spark("Publications per second", "s-main-2"),
    latency: new Spark("Latency p95"),
    failing: new Spark("Failures per second", "s-bad"),
    unanswered: new Spark("Unanswered requests", "s-main-2"),
    queued: new Spark("Queued requests", "s-warn"),
    workers: new Spark("Workers", "s-quiet"),
  };
  const tiles = {
    requests: new Tile("requests", "Requests / s", sparks.requests),
    latency: new Tile("latency", "Latency, p95", sparks.latency),
    failing: new Tile("failing", "Failures / s", sparks.failing, route("dead")),
    published: new Tile("published", "Publications / s", sparks.published, route("topics")),
    unanswered: new Tile("unanswered", "In flight", sparks.unanswered, route("queues")),
    queued: new Tile("queued", "Queued", sparks.queued, route("queues")),
    workers: new Tile("workers", "Workers", sparks.workers, route("workers")),
    history: new Tile("history", "Journal and pipeline", null, route("pipeline")),
  };
  const much = new Chart({
    title: "Requests per second",
    write: rate,
    filled: true,
    series: [
      { name: "replied", kind: "s-main", pick: (point) => point.replied_per_s },
      { name: "failing", kind: "s-bad", pick: (point) => point.failing_per_s },
    ],
  });
  const fast = new Chart({
    title: "Latency",
    write: took,
    log: true,
    series: [
      { name: "p99", kind: "s-main", pick: (point) => point.p99_s },
      { name: "p95", kind: "s-main-2", pick: (point) => point.p95_s },
      { name: "p50", kind: "s-main-3", pick: (point) => point.p50_s },
    ],
  });
  const columns = serviceColumns();
  const pick = (...names) => names.map((name) => columns.find((column) => column.id === name));
  const table = (caption, empty, ...names) =>
    new Table({
      caption,
      columns: pick("service", ...names),
      key: (row) => row.service,
      most: LISTED,
      empty,
    });
  const slow = table(
    "The slowest services now",
    "No service was asked in the last ten seconds.",
    "p50",
    "p95",
    "p99",
    "rate",
  );
  const wrong = new Table({
    caption: "Services that fail or wait",
    key: (row) => row.service,
    most: LISTED,
    empty: "Nothing failed in the last minute, and nothing waits.",
    columns: [
      ...pick("service", "state"),
      {
        id: "failures",
        head: "failed",
        number: true,
        value: (row) => row.lately,
        show: number,
        kind: (value) => (value ? "red" : ""),
      },
      ...pick("queued", "oldest"),
    ],
  });
  const judged = h("div", { class: "verdict", data: { verdict: "" } });
  put(
    root,
    heading("Overview", "What the bus does now, and did in the last five minutes."),
    judged,
    h(
      "div",
      { class: "tiles" },
      Object.values(tiles).map((tile) => tile.element),
    ),
    h(
      "div",
      { class: "pair" },
      card(
        "How much",
        null,
        legend([
          ["replied", "s-main"],
          ["failed, expired or rejected", "s-bad"],
        ]),
        much.element,
      ),
      card(
        "How fast",
        null,
        legend([
          ["p99", "s-main"],
          ["p95", "s-main-2"],
          ["p50", "s-main-3"],
        ]),
        fast.element,
      ),
    ),
    h(
      "div",
      { class: "pair" },
      card("What is slow", "By p95 of the last ten seconds, from acceptance to reply.", slow.element),
      card("What fails or waits", "Failed attempts of the last minute, and what is queued.", wrong.element),
    ),
  );

  const draw = () => {
    judge(judged, facts);
    const look = live.look;
    if (!look) return;
    const totals = look.totals;
    const recent = live.points.filter((point) => point && point.at > look.at - WITHIN_S);
    const failures = recent.reduce((total, point) => total + point.failing_per_s, 0);
    tiles.requests.update(
      totals.accepted,
      rate(totals.accepted_per_s),
      `${number(totals.accepted)} since the start`,
    );
    tiles.latency.update(
      totals.p95_s,
      took(totals.p95_s),
      `p50 ${took(totals.p50_s)} · p99 ${took(totals.p99_s)}`,
    );
    tiles.failing.update(
      totals.failed,
      rate(totals.failing_per_s),
      `${number(Math.round(failures))} requests in the last minute`,
      totals.failing_per_s ? "bad" : "",
    );
    tiles.published.update(
      totals.published,
      rate(totals.published_per_s),
      `${plural(totals.subscribers || 0, "subscriber")}`,
    );
    tiles.unanswered.update(totals.requests, number(totals.requests), `${number(totals.running)} at workers`);
    tiles.queued.update(
      totals.queued,
      number(totals.queued),
      oldest(look.services),
      totals.queued > 100 ? "warn" : "",
    );
    tiles.workers.update(
      totals.workers,
      number(totals.workers),
      look.workers_late || totals.silent_workers
        ? [
            look.workers_late ? `${look.workers_late} late` : "",
            totals.silent_workers ? `${totals.silent_workers} silent` : "",
          ]
            .filter(Boolean)
            .join(", ")
        : `${plural(totals.nodes, "node")}, ${plural(totals.clients, "client")}`,
      look.workers_late || totals.silent_workers ? "warn" : "",
    );
    history(tiles.history, facts);
    const [begin, end] = period();
    for (const [name, field, write] of DRAWN) {
      sparks[name].update(live.points, (point) => point[field], begin, end, write);
    }
    much.update(live.points, begin, end);
    fast.update(live.points, begin, end, "Nobody asked for anything yet.");
    slow.update(
      [...look.services].filter((row) => row.p95_s !== null).sort((one, other) => other.p95_s - one.p95_s),
    );
    wrong.update(failing(look));
  };
  const ask = (name, path, parameters) => async () => {
    try {
      facts[name] = await get(path, parameters);
    } catch {
      facts[name] = null;
    }
    draw();
  };
  const ends = [
    watch(draw),
    every(5, ask("status", "/api/status")),
    every(15, ask("pipeline", "/api/pipeline")),
    every(10, ask("dead", "/api/dead", { limit: MOST_DEAD })),
  ];
  return () => ends.forEach((end) => end());
}

function oldest(services) {
  const waits = services.map((row) => row.oldest_s).filter((value) => value !== null);
  return waits.length ? `the oldest for ${span(Math.max(...waits))}` : "nothing waits";
}

/** Services with failures in the last minute or with a queue, the worst first. */
function failing(look) {
  return look.services
    .map((row) => {
      const points = (live.services.get(row.service) || []).filter(
        (point) => point && point.at > look.at - WITHIN_S,
      );
      return { ...row, lately: Math.round(points.reduce((total, point) => total + point.failed_per_s, 0)) };
    })
    .filter((row) => row.lately || row.queued || row.state !== "alive")
    .sort((one, other) => other.lately - one.lately || other.queued - one.queued);
}

function history(tile, { status, pipeline }) {
  if (!status) return tile.update("", "–", "");
  const behind = status.archiver_behind_s;
  const lag = pipeline?.tables?.length ? pipeline.lag_s : null;
  const isLost = status.journal_lost > 0;
  const text = status.journal === "on" ? (lag === null ? "on" : span(lag)) : String(status.journal);
  const more = isLost
    ? `${exact(status.journal_lost)} records lost`
    : lag === null
      ? `archive ${span(behind ?? null)} behind · no tables yet`
      : `tables behind · archive ${span(behind ?? null)}`;
  return tile.update(status.journal_written, text, more, isLost ? "bad" : "");
}

function judge(element, facts) {
  const found = verdict(live, facts);
  const key = JSON.stringify(found);
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.dataset.verdict = found.state;
  element.className = `verdict ${found.state}`;
  put(
    element,
    h(
      "div",
      {},
      h("strong", {}, found.title),
      found.remarks.length
        ? h(
            "ul",
            {},
            found.remarks.map((remark) =>
              h(
                "li",
                { class: remark.kind },
                remark.place ? link(remark.text, ...remark.place) : remark.text,
              ),
            ),
          )
        : null,
    ),
  );
}
