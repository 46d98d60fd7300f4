// The page: which views there are, which of them is shown, the state of the connection, and the keys.

import { onTokenWanted, takeToken } from "./api.js";
import { askForToken, showHelp } from "./dialogs.js";
import { attribute, h, put, route, say } from "./dom.js";
import { live, start, watch } from "./live.js";
import { heading, sentence, trouble } from "./parts.js";
import { hideTip } from "./tip.js";
import { prepareTheme } from "./theme.js";

// View → how it is called; it is loaded when it is first wanted. Those without a name are reached from others.
const VIEWS = [
  [
    "Now",
    [
      ["overview", "Overview"],
      ["services", "Services"],
      ["workers", "Workers"],
      ["nodes", "Nodes"],
      ["queues", "Queues"],
      ["topics", "Topics"],
    ],
  ],
  [
    "Work",
    [
      ["jobs", "Jobs"],
      ["dead", "Dead letters"],
      ["schedules", "Schedules"],
    ],
  ],
  [
    "Watch",
    [
      ["logs", "Logs"],
      ["tap", "Tap"],
      ["trace", "Trace"],
    ],
  ],
  [
    "History",
    [
      ["calls", "Calls"],
      ["pipeline", "Pipeline"],
    ],
  ],
];
const DETAILS = { service: "services", job: "jobs" };
const NAMES = new Map(VIEWS.flatMap(([, views]) => views));
const COUNTED = {
  services: "services",
  workers: "workers",
  nodes: "nodes",
  topics: "last_values",
  schedules: "schedules",
};
const SHORTCUTS = {
  o: "overview",
  s: "services",
  w: "workers",
  j: "jobs",
  d: "dead",
  t: "trace",
  l: "logs",
  c: "calls",
  p: "pipeline",
};

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
const places = new Map();
const counts = new Map();
let leave = null;
let shown = 0;

// -- views ----------------------------------------------------------------------------------------

function place() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { name: name || "overview", parameter: decode(rest.join("/")) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function show(isFirst) {
  const { name, parameter } = place();
  if (!NAMES.has(name) && !(name in DETAILS)) {
    location.replace(route("overview"));
    return;
  }
  const number = ++shown;
  let view;
  try {
    view = await import(`./views/${name}.js`);
  } catch {
    view = {
      default: (root) =>
        put(
          root,
          heading("This view could not be loaded"),
          trouble({
            message: "the dashboard's own process does not answer",
            next: "see whether 'polybus web' still runs, and load the page again",
          }),
        ),
    };
  }
  // Somebody was faster.
  if (number !== shown) return;
  leave?.();
  hideTip();
  closeMenu();
  const root = h("div", { class: "view", data: { view: name } });
  put(main, root);
  leave = view.default(root, parameter) || null;
  const belongs = DETAILS[name] || name;
  for (const [key, element] of places) attribute(element, "aria-current", key === belongs ? "page" : null);
  const title = root.querySelector("h1")?.textContent || NAMES.get(name);
  document.title = `${title} · polybus`;
  scrollTo(0, 0);
  if (!isFirst) root.querySelector("h1")?.focus({ preventScroll: true });
}

function drawNav() {
  put(
    nav,
    VIEWS.map(([group, views]) =>
      h(
        "div",
        { class: "group" },
        h("h2", {}, group),
        h(
          "ul",
          {},
          views.map(([name, title]) => {
            const count = h("span", { class: "count", "aria-hidden": "true" });
            const anchor = h("a", { href: route(name) }, h("span", {}, title), count);
            places.set(name, anchor);
            counts.set(name, count);
            return h("li", {}, anchor);
          }),
        ),
      ),
    ),
  );
}

function closeMenu() {
  nav.classList.remove("is-open");
  menu.setAttribute("aria-expanded", "false");
}

// -- the connection -------------------------------------------------------------------------------

const WORDS = {
  connecting: "connecting …",
  up: "live",
  down: "broker down",
  lost: "dashboard lost",
  locked: "token needed",
};
// What is wrong, and what to do if nobody else says so.
const ALARMS = {
  down: ["The broker does not answer.", "'polybus serve' starts it"],
  lost: ["The dashboard's own process does not answer.", "'polybus web' starts it"],
  locked: ["Looking needs the token, too.", "load the page with the address that 'polybus web' printed"],
};

function drawConnection() {
  const element = document.getElementById("connection");
  attribute(element, "data-connection", live.connection);
  const name = live.look?.totals.broker;
  say(
    element.lastElementChild,
    live.connection === "up" && name
      ? `${name} · ${live.look.totals.state === "serving" ? "live" : live.look.totals.state}`
      : WORDS[live.connection],
  );
  const alarm = document.getElementById("alarm");
  const isAway = live.connection in ALARMS;
  document.body.classList.toggle("is-stale", isAway);
  if (isAway) {
    const key = `${live.connection} ${live.error}`;
    if (alarm.dataset.key !== key) {
      alarm.dataset.key = key;
      const [title, next] = ALARMS[live.connection];
      const words = `${sentence(live.error)}. ${sentence(live.next || next)}.`;
      put(
        alarm,
        h("strong", {}, title),
        ` ${words} This page looks again by itself; what it shows is from before.`,
      );
    }
  } else {
    delete alarm.dataset.key;
  }
  alarm.hidden = !isAway;
  for (const [view, field] of Object.entries(COUNTED))
    say(counts.get(view), live.look ? (live.look.totals[field] ?? "") : "");
}

// -- keys -----------------------------------------------------------------------------------------

let began = 0;

function onKey(event) {
  const isTyping = event.target.closest?.("input, select, textarea, [contenteditable]");
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  if (event.key === "/") {
    event.preventDefault();
    const box = main.querySelector("[data-filter]") || document.getElementById("find");
    box.focus();
    box.select?.();
  } else if (event.key === "?") {
    showHelp();
  } else if (event.key === "g") {
    began = event.timeStamp;
  } else if (event.key in SHORTCUTS && event.timeStamp - began < 1500) {
    location.hash = route(SHORTCUTS[event.key]);
    began = 0;
  }
}

// -- the beginning --------------------------------------------------------------------------------

takeToken();
onTokenWanted(askForToken);
prepareTheme(document.getElementById("theme"));
drawNav();
document.getElementById("help").addEventListener("click", showHelp);
document.getElementById("finder").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = document.getElementById("find").value.trim();
  if (name) location.hash = route("trace", name);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The address tells the view, so it cannot tell the place in it as well.
  event.preventDefault();
  main.focus();
});
menu.addEventListener("click", () => {
  const isOpen = nav.classList.toggle("is-open");
  menu.setAttribute("aria-expanded", String(isOpen));
});
document.addEventListener("keydown", onKey);
addEventListener("hashchange", () => show(false));
start();
watch(drawConnection);
show(true);
