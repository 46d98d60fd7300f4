// Dialogs and short messages. The browser's own <dialog> keeps the focus inside and gives it back.

import { keepToken } from "./api.js";
import { button, sentence } from "./parts.js";
import { h } from "./dom.js";

const SHOWN_S = 6;

/** Ask a question; true if the answer is yes. */
export function confirm(question, detail, yes, kind = "danger") {
  return open((close) => [
    h("h2", { id: "dialog-title" }, question),
    detail ? h("p", {}, detail) : null,
    h(
      "div",
      { class: "buttons" },
      button("No, leave it", () => close(false)),
      button(yes, () => close(true), kind),
    ),
  ]);
}

let asking = null;

/** Ask for the token; true if one was given. Several questions that need it share one dialog. */
export function askForToken(reason) {
  asking ||= open((close) => {
    const input = h("input", {
      type: "password",
      id: "token",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
    });
    const form = h(
      "form",
      {
        submit: (event) => {
          event.preventDefault();
          keepToken(input.value);
          close(true);
        },
      },
      h("label", { for: "token" }, "Token"),
      input,
      h(
        "div",
        { class: "buttons" },
        button("Not now", () => close(false)),
        h("button", { class: "button main" }, "Use this token"),
      ),
    );
    return [
      h("h2", { id: "dialog-title" }, "This needs the token"),
      h("p", { class: "reason", data: { reason: "" } }, sentence(reason), "."),
      h(
        "p",
        {},
        "'polybus web' prints it when it starts, at the end of the address: ",
        h("code", {}, "ready dashboard=http://…/?token=…"),
        ". With ",
        h("code", {}, "--token"),
        " or ",
        h("code", {}, "--token-file"),
        " you chose it yourself. It is kept in this tab only.",
      ),
      form,
    ];
  }).finally(() => {
    asking = null;
  });
  return asking;
}

export function showHelp() {
  const keys = [
    ["/", "go to the filter or the search box"],
    ["?", "this help"],
    ["g then o", "overview"],
    ["g then s", "services"],
    ["g then j", "jobs"],
    ["g then d", "dead letters"],
    ["g then t", "trace"],
    ["g then l", "logs"],
    ["Esc", "close a dialog; leave a box"],
  ];
  return open((close) => [
    h("h2", { id: "dialog-title" }, "Help"),
    h(
      "p",
      {},
      "Rates are those of the last second, times those of the last ten; lines show the last five minutes of this page. " +
        "History comes from the tables that ",
      h("code", {}, "polybus pipeline run"),
      " makes.",
    ),
    h(
      "dl",
      { class: "keys" },
      keys.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))),
    ),
    h(
      "p",
      {},
      "Looking is free. What changes something (retry, drop, cancel, remove) needs the token that ",
      h("code", {}, "polybus web"),
      " printed.",
    ),
    h(
      "div",
      { class: "buttons" },
      button("Close", () => close(true), "main"),
    ),
  ]);
}

function open(make) {
  return new Promise((done) => {
    let answer = false;
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" });
    const close = (value) => {
      answer = value;
      dialog.close();
    };
    dialog.append(...make(close).filter(Boolean));
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A message that goes away by itself. */
export function toast(text, kind = "good") {
  const message = h("p", { class: `toast ${kind}` }, sentence(text));
  document.getElementById("toasts").append(message);
  setTimeout(() => message.remove(), SHOWN_S * 1000);
}

/** Do something that a person wants, and say how it went; true if it worked. */
export async function attempt(work, told) {
  try {
    const answer = await work();
    toast(told(answer));
    return true;
  } catch (error) {
    toast(error.next ? `${error.message}: ${error.next}` : error.message, "bad");
    return false;
  }
}
