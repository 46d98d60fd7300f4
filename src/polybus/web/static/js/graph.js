// Who calls whom: clients on the left, services on the right, and between them how much they have to do.

import { h, link, s } from "./dom.js";
import { number, share } from "./format.js";
import { hideTip, showTip } from "./tip.js";

// More lines cannot be followed; the rest is one name.
const MOST_NAMES = 14;
const OTHERS = "(others)";
const THINNEST = 1;
const THICKEST = 15;
// From this share on, errors are drawn.
const LEAST_SHARE = 0.02;
const ROW_PX = 38;
const SEPARATOR = "\u0000";

/** Rows of the table `calls`, added up: one for each client, dialect and service. */
export function addUp(rows) {
  const found = new Map();
  for (const row of rows) {
    const client = row.client || "(unnamed)";
    const key = [client, row.client_dialect || "", row.service || ""].join(SEPARATOR);
    const sum = found.get(key) || {
      key,
      client,
      dialect: row.client_dialect || "",
      service: row.service || "",
      requests: 0,
      errors: 0,
      service_us: 0,
      bytes_in: 0,
      bytes_out: 0,
      last_at: null,
    };
    for (const name of ["requests", "errors", "service_us", "bytes_in", "bytes_out"])
      sum[name] += row[name] || 0;
    if (!sum.last_at || row.last_at > sum.last_at) sum.last_at = row.last_at;
    found.set(key, sum);
  }
  return [...found.values()];
}

/** Edges as wide as they are busy, the red part of them as their errors are. */
export function callGraph(calls) {
  const clients = most(calls, "client");
  const services = most(calls, "service");
  const edges = new Map();
  for (const call of calls) {
    const client = clients.has(call.client) ? call.client : OTHERS;
    const service = services.has(call.service) ? call.service : OTHERS;
    const key = client + SEPARATOR + service;
    const edge = edges.get(key) || { client, service, requests: 0, errors: 0 };
    edge.requests += call.requests;
    edge.errors += call.errors;
    edges.set(key, edge);
  }
  const drawn = [...edges.values()].sort((one, other) => other.requests - one.requests);
  const left = ordered(drawn, "client");
  const place = new Map(left.map((name, index) => [name, index]));
  // A service stands about where its clients do, so that fewer lines cross.
  const middle = (name) => {
    const its = drawn.filter((edge) => edge.service === name);
    return (
      its.reduce((total, edge) => total + place.get(edge.client) * edge.requests, 0) /
      its.reduce((total, edge) => total + edge.requests, 0)
    );
  };
  const right = ordered(drawn, "service").sort(
    (one, other) => middle(one) - middle(other) || one.localeCompare(other),
  );
  const paths = [];
  const top = Math.max(...drawn.map((edge) => edge.requests), 1);
  for (const edge of drawn) paths.push(...line(edge, left, right, top));
  const svg = s(
    "svg",
    {
      viewBox: "0 0 1000 100",
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Who calls whom: ${left.length} clients, ${right.length} services. The table below has the same numbers.`,
    },
    paths.map((one) => one.path),
  );
  const element = h(
    "div",
    { class: "graph" },
    h(
      "div",
      {},
      left.map((name, index) => label(name, index, left, calls, drawn, "client", paths, () => element)),
    ),
    h("div", { class: "area" }, svg),
    h(
      "div",
      {},
      right.map((name, index) => label(name, index, right, calls, drawn, "service", paths, () => element)),
    ),
  );
  element.style.height = `${Math.max(left.length, right.length) * ROW_PX}px`;
  return element;
}

function totals(rows, side) {
  const sums = new Map();
  for (const row of rows) sums.set(row[side], (sums.get(row[side]) || 0) + row.requests);
  return sums;
}

function most(calls, side) {
  const sums = [...totals(calls, side)].sort((one, other) => other[1] - one[1]);
  return new Set(
    sums.slice(0, sums.length <= MOST_NAMES ? MOST_NAMES : MOST_NAMES - 1).map(([name]) => name),
  );
}

function ordered(edges, side) {
  const sums = totals(edges, side);
  return [...sums.keys()].sort(
    (one, other) =>
      (one === OTHERS) - (other === OTHERS) || sums.get(other) - sums.get(one) || one.localeCompare(other),
  );
}

function heightOf(index, names) {
  return ((index + 0.5) / names.length) * 100;
}

function line(edge, left, right, top) {
  const begin = heightOf(left.indexOf(edge.client), left).toFixed(2);
  const end = heightOf(right.indexOf(edge.service), right).toFixed(2);
  const way = `M0 ${begin}C500 ${begin} 500 ${end} 1000 ${end}`;
  // By area rather than by width: a thousandth of the traffic is still a line.
  const width = THINNEST + (THICKEST - THINNEST) * Math.sqrt(edge.requests / top);
  const wrong = edge.errors / edge.requests;
  const words =
    `${edge.client} → ${edge.service}\n${number(edge.requests)} requests` +
    (edge.errors ? `\n${number(edge.errors)} failed or expired (${share(wrong)})` : "");
  const path = s("path", {
    class: "edge",
    d: way,
    "stroke-width": width.toFixed(1),
    pointermove: (event) => showTip(event, words),
    pointerdown: (event) => showTip(event, words),
    pointerleave: hideTip,
  });
  const found = [{ edge, path }];
  if (wrong >= LEAST_SHARE)
    found.push({
      edge,
      path: s("path", {
        class: "edge bad",
        d: way,
        "stroke-width": Math.max(THINNEST, width * wrong).toFixed(1),
      }),
    });
  return found;
}

function label(name, index, names, calls, drawn, side, paths, graph) {
  const dialects =
    side === "client"
      ? [
          ...new Set(
            calls
              .filter((call) => call.client === name)
              .map((call) => call.dialect)
              .filter(Boolean),
          ),
        ].sort()
      : [];
  const spoken = dialects.length < 3 ? dialects.join(", ") : `${dialects.length} dialects`;
  const small = h("small", {}, number(totals(drawn, side).get(name)) + (spoken ? ` · ${spoken}` : ""));
  const light = (isLit) => () => {
    graph().classList.toggle("has-lit", isLit);
    for (const one of paths) one.path.classList.toggle("lit", isLit && one.edge[side] === name);
  };
  const text = name.length > 32 ? `${name.slice(0, 31)}…` : name;
  const inside = side === "service" && name !== OTHERS ? link(text, "service", name) : text;
  const element = h(
    "span",
    {
      class: "name",
      title: name,
      pointerenter: light(true),
      pointerleave: light(false),
      focusin: light(true),
      focusout: light(false),
    },
    inside,
    small,
  );
  element.style.top = `${heightOf(index, names)}%`;
  return element;
}
