// One service: live, over time from the tables, and who serves it.

import { get } from "../api.js";
import { Chart, legend } from "../charts.js";
import { every, h, link, put } from "../dom.js";
import { epoch, exact, number, plural, rate, share, span, took } from "../format.js";
import { live, period, watch } from "../live.js";
import { absent, badge, card, choice, facts, heading, Tile, trouble } from "../parts.js";
import { Table } from "../table.js";
import { workerColumns } from "./workers.js";

const PERIODS = [
  ["15", "15 minutes"],
  ["60", "an hour"],
  ["360", "6 hours"],
  ["1440", "a day"],
  ["10080", "a week"],
];
const MICROS = 1e6;

export default function service(root, name) {
  const tiles = {
    rate: new Tile("rate", "Done / s"),
    latency: new Tile("latency", "Latency, p95"),
    queued: new Tile("queued", "Queued"),
    failed: new Tile("failed", "Failed"),
  };
  const percentiles = [
    { name: "p99", kind: "s-main", pick: (point) => point.p99_s },
    { name: "p95", kind: "s-main-2", pick: (point) => point.p95_s },
    { name: "p50", kind: "s-main-3", pick: (point) => point.p50_s },
  ];
  const much = new Chart({
    title: `${name}: requests per second`,
    write: rate,
    filled: true,
    series: [
      { name: "done", kind: "s-main", pick: (point) => point.done_per_s },
      { name: "failed", kind: "s-bad", pick: (point) => point.failed_per_s },
    ],
  });
  const fast = new Chart({ title: `${name}: latency`, write: took, log: true, series: percentiles });
  const workers = new Table({
    caption: `Workers of ${name}`,
    columns: workerColumns().filter((column) => column.id !== "services"),
    key: (row) => row.worker,
    sort: "worker",
    empty: "Nobody serves it.",
  });
  const known = h("div");
  const past = h("div");
  const state = h("span");
  let minutes = 60;
  put(
    root,
    heading(name, null, state),
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
          ["done", "s-main"],
          ["failed", "s-bad"],
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
    card(
      "History",
      "From the table service_metrics: the time at a worker and the wait for one, in windows of ten seconds.",
      h(
        "div",
        { class: "actions" },
        choice(
          "The last",
          PERIODS,
          (value) => {
            minutes = Number(value);
            remember();
          },
          "60",
        ),
      ),
      past,
    ),
    card("Workers", null, workers.element),
    card("Facts", null, known),
  );

  const draw = () => {
    const look = live.look;
    if (!look) return;
    const row = look.services.find((one) => one.service === name);
    const points = live.services.get(name) || [];
    put(
      state,
      row ? badge(row.state) : h("span", { class: "soft" }, "not among the busiest; its facts are below"),
    );
    if (row) {
      tiles.rate.update(
        row.answered,
        rate(row.done_per_s),
        `${number(row.answered + row.failed)} since the start`,
      );
      tiles.latency.update(row.p95_s, took(row.p95_s), `p50 ${took(row.p50_s)} · p99 ${took(row.p99_s)}`);
      tiles.queued.update(
        row.queued,
        number(row.queued),
        row.oldest_s === null
          ? `${plural(row.running, "request")} at workers`
          : `the oldest for ${span(row.oldest_s)}`,
        row.oldest_s > 5 ? "warn" : "",
      );
      tiles.failed.update(
        row.failed,
        number(row.failed),
        `${rate(row.failed_per_s)} per second`,
        row.failed_per_s ? "bad" : "",
      );
    }
    const [begin, end] = period();
    much.update(points, begin, end);
    fast.update(points, begin, end, "Nobody asked for it yet.");
    workers.update(look.workers.filter((one) => name in one.services));
  };
  const ask = async () => {
    try {
      const row = (await get("/api/services")).find((one) => one.service === name);
      put(
        known,
        row
          ? facts([
              ["dialects of its workers", row.dialects.join(", ")],
              ["workers", exact(row.workers), "workers"],
              ["free slots", exact(row.free_slots)],
              ["load", share(row.load)],
              ["accepted", exact(row.accepted), "accepted"],
              ["answered", exact(row.answered), "answered"],
              ["failed", exact(row.failed), "failed"],
              ["waiting for a next attempt", exact(row.waiting)],
              ["at once, at most", row.limits.concurrency || "no limit"],
              ["per second, at most", row.limits.rate_per_s || "no limit"],
              ["served for", span(row.up_s)],
              [
                "reached over bridges",
                row.via.length
                  ? row.via.map((way) => (Array.isArray(way) ? way.join(" → ") : String(way))).join(", ")
                  : "no",
              ],
              ["unanswered", link("in the queues", "queues")],
              ["jobs", link("its jobs", "jobs")],
              ["dead letters", link("its dead letters", "dead")],
            ])
          : h("p", { class: "nothing" }, "The broker knows no service of this name now."),
      );
    } catch (error) {
      put(known, trouble(error));
    }
  };
  const remember = async () => {
    try {
      drawHistory(past, name, await get("/api/history/service", { name, minutes }));
    } catch (error) {
      put(past, error.status === 404 ? absent(error) : trouble(error));
    }
  };
  const ends = [watch(draw), every(5, ask), every(30, remember)];
  return () => ends.forEach((end) => end());
}

function drawHistory(element, name, answer) {
  const rows = Array.isArray(answer) ? answer : answer.rows || [];
  if (!rows.length) {
    put(
      element,
      h(
        "p",
        { class: "nothing" },
        answer.next ||
          "The tables tell nothing of it in this time. 'polybus pipeline run' keeps them up to date.",
      ),
    );
    return;
  }
  const points = rows.map((row) => ({ ...row, at: epoch(row.at) }));
  const width = Math.max(10, points[points.length - 1].at - points[0].at);
  const seconds = (field) => (point) =>
    point[field] === null || point[field] === undefined ? null : Math.max(point[field], 1) / MICROS;
  const three = (measure) =>
    [99, 95, 50].map((percent, index) => ({
      name: `p${percent}`,
      kind: ["s-main", "s-main-2", "s-main-3"][index],
      pick: seconds(`${measure}_p${percent}_us`),
    }));
  const charts = [
    [
      "Time of service",
      new Chart({ title: `${name}: time of service`, write: took, log: true, series: three("service") }),
    ],
    [
      "Wait for a worker",
      new Chart({ title: `${name}: wait for a worker`, write: took, log: true, series: three("wait") }),
    ],
    [
      "Requests per second",
      new Chart({
        title: `${name}: requests per second`,
        write: rate,
        filled: true,
        low: true,
        series: [{ name: "requests", kind: "s-main", pick: (point) => point.rate }],
      }),
    ],
    [
      "Failed or expired",
      new Chart({
        title: `${name}: share that failed or expired`,
        write: share,
        filled: true,
        low: true,
        series: [{ name: "failed", kind: "s-bad", pick: (point) => point.error_rate }],
      }),
    ],
  ];
  const begin = points[0].at;
  const pieces = broken(points);
  put(
    element,
    h(
      "div",
      { class: "pair charts", data: { value: String(rows.length) } },
      charts.map(([title, chart]) => h("div", {}, h("h3", {}, title), chart.element)),
    ),
  );
  for (const [, chart] of charts) chart.update(pieces, begin, begin + width);
}

/** Where windows are missing nothing happened: no line is drawn across. */
function broken(points) {
  const found = [];
  for (const point of points) {
    const last = found[found.length - 1];
    const step =
      last && points.length > 1 ? (points[points.length - 1].at - points[0].at) / (points.length - 1) : 10;
    if (last && point.at - last.at > Math.max(60, step * 6)) found.push(null);
    found.push(point);
  }
  return found;
}
