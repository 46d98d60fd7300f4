// The call graph, from the table `calls`, and the same as a table.

import { get } from "../api.js";
import { every, h, put, route } from "../dom.js";
import { exact, moment, number, share, size, took } from "../format.js";
import { addUp, callGraph } from "../graph.js";
import { card, filterBox, heading, trouble } from "../parts.js";
import { Table } from "../table.js";

const COLUMNS = [
  { id: "client", head: "client", isHead: true, class: "wrap", value: (row) => row.client },
  { id: "dialect", head: "dialect", minor: true, value: (row) => row.dialect },
  {
    id: "service",
    head: "service",
    value: (row) => row.service,
    href: (row) => route("service", row.service),
  },
  { id: "requests", head: "requests", number: true, value: (row) => row.requests, show: number },
  {
    id: "errors",
    head: "failed",
    number: true,
    value: (row) => row.errors,
    show: number,
    kind: (value) => (value ? "red" : ""),
  },
  {
    id: "share",
    head: "share",
    number: true,
    minor: true,
    value: (row) => (row.requests ? row.errors / row.requests : null),
    show: share,
  },
  {
    id: "mean",
    head: "mean time",
    number: true,
    minor: true,
    value: (row) => (row.requests ? row.service_us / row.requests / 1e6 : null),
    show: took,
  },
  { id: "bytes_in", head: "in", number: true, minor: true, value: (row) => row.bytes_in, show: size },
  { id: "bytes_out", head: "out", number: true, minor: true, value: (row) => row.bytes_out, show: size },
  { id: "last", head: "last", minor: true, value: (row) => row.last_at, show: (value) => moment(value) },
];

export default function calls(root) {
  const table = new Table({
    caption: "Calls",
    columns: COLUMNS,
    key: (row) => row.key,
    sort: "requests",
    descending: true,
    search: (row) => `${row.client} ${row.dialect} ${row.service}`,
    empty: "Nobody called anybody.",
  });
  const drawing = h("div");
  const problem = h("div");
  let shown = "";
  put(
    root,
    heading(
      "Calls",
      "Who calls whom, over all days that are in the tables. The busier, the wider; red is the share that failed or expired.",
      filterBox("Filter calls", (words) => table.filter(words)),
    ),
    problem,
    card("Call graph", null, drawing),
    card("The same as a table", null, table.element),
  );
  const ask = async () => {
    try {
      const answer = await get("/api/history/calls");
      const rows = addUp(Array.isArray(answer) ? answer : answer.rows || []);
      put(problem);
      table.update(rows);
      const key = JSON.stringify(rows);
      if (key === shown) return;
      shown = key;
      drawing.dataset.value = exact(rows.length);
      put(
        drawing,
        rows.length
          ? callGraph(rows)
          : h(
              "p",
              { class: "nothing" },
              answer.next ||
                "The table is empty: nobody called anybody yet, or 'polybus pipeline run' has not come so far.",
            ),
      );
    } catch (error) {
      put(problem, trouble(error));
      put(drawing, h("p", { class: "nothing" }, "Nothing to draw."));
      table.update([]);
    }
  };
  return every(10, ask);
}
