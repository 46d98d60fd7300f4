// The life of a request as bars: how long it was in which state, under one clock for all that belongs together.

import { clock, epoch, moment, took } from "./format.js";
import { h, link, s } from "./dom.js";
import { badge } from "./parts.js";

// What the time after a step was spent on.
const AFTER = {
  accepted: "wait",
  queued: "wait",
  requeued: "wait",
  retried: "lost",
  dispatched: "work",
  claimed: "work",
  partial: "work",
};
const ENDS = {
  replied: "good",
  failed: "bad",
  expired: "bad",
  cancelled: "lost",
  rejected: "bad",
  dead: "bad",
  late: "lost",
  answer_lost: "bad",
};
// A bar is seen from here on, of 1000.
const LEAST = 7;
const DRAWN = 200;

/** requests: as `polybus trace --json` gives them. */
export function waterfall(requests) {
  const times = requests.flatMap((request) => request.steps.map((step) => epoch(step.at)));
  const begin = Math.min(...times);
  const length = Math.max(Math.max(...times) - begin, 1e-6);
  return requests.map((request) => one(request, begin, length, requests.length > 1));
}

function one(request, begin, length, isOneOfMany) {
  const steps = request.steps.slice(0, DRAWN);
  const title = h("h2", {}, h("span", { class: "code" }, request.token), " ", request.service || "");
  const words = [
    sentenceOf(request),
    isOneOfMany ? `at broker ${request.broker}` : "",
    request.request_id && request.request_id !== request.token ? `id ${request.request_id}` : "",
    `began ${moment(request.steps[0].at, 6)}`,
  ]
    .filter(Boolean)
    .join(" · ");
  const ruler = h(
    "li",
    { class: "scale", "aria-hidden": "true" },
    h("span"),
    h("span"),
    h(
      "div",
      { class: "ruler" },
      [0, 0.25, 0.5, 0.75, 1].map((part) => {
        const label = h("span", {}, part === 0 ? "0" : took(length * part));
        label.style.left = `${part * 100}%`;
        return label;
      }),
    ),
    h("span"),
  );
  return h(
    "section",
    { class: "card", data: { request: request.token, outcome: request.outcome || "" } },
    title,
    h("p", { class: "sub" }, badge(request.outcome || "not ended"), " ", words),
    h(
      "ol",
      { class: "steps" },
      ruler,
      steps.map((step, index) => line(request, step, steps[index + 1], begin, length)),
    ),
    request.steps.length > DRAWN
      ? h(
          "p",
          { class: "hint" },
          `… and ${request.steps.length - DRAWN} more steps: polybus trace ${request.token}`,
        )
      : null,
    h(
      "p",
      { class: "hint" },
      link("The job", "job", request.token),
      " · ",
      request.service ? link("The service", "service", request.service) : null,
    ),
  );
}

function sentenceOf(request) {
  return String(request.told || "");
}

function line(request, step, next, begin, length) {
  const at = epoch(step.at) - begin;
  const until = next ? epoch(next.at) - begin : at;
  const kind = ENDS[step.what] && (!next || !AFTER[step.what]) ? ENDS[step.what] : AFTER[step.what] || "wait";
  const lasted = until - at;
  const bar = bars(at / length, lasted / length, kind, next ? `${step.what} for ${took(lasted)}` : step.what);
  const who = [
    step.worker_dialect && step.what !== "accepted" ? step.worker_dialect : step.client_dialect,
  ].filter(Boolean);
  const isWrong = ["failed", "expired", "rejected", "retried", "requeued", "dead", "answer_lost"].includes(
    step.what,
  );
  return h(
    "li",
    { data: { what: step.what, attempt: String(step.attempt ?? "") } },
    h("span", { class: "offset", title: clock(step.at, 6) }, `+${took(at)}`),
    h("span", {}, badge(step.what)),
    bar,
    h(
      "span",
      { class: "told" },
      who.length ? [h("span", { class: "badge info" }, who[0]), " "] : null,
      h("span", { class: isWrong ? "why" : "" }, step.told || ""),
      next && lasted > 0 ? h("span", { class: "soft" }, ` · ${took(lasted)}`) : null,
    ),
  );
}

function bars(start, width, kind, label) {
  const left = Math.min(start * 1000, 1000 - LEAST);
  return h(
    "div",
    { class: "lane" },
    s(
      "svg",
      { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": label },
      s("rect", {
        class: kind,
        x: left.toFixed(1),
        y: 3,
        width: Math.max(width * 1000, LEAST).toFixed(1),
        height: 10,
      }),
    ),
  );
}
