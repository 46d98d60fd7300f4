// Questions to the dashboard's own process: JSON, and streams of events.
//
// The token that actions need comes with the address that `polybus web` prints.  It is taken out of the address at
// once and kept for this tab only.  Streams are read with fetch: unlike EventSource it sends the token as a header,
// so that it never stands in an address or a log, and it tells why something was refused.

const KEY = "polybus-token";
const FIRST_PAUSE_S = 0.5;
const LONGEST_PAUSE_S = 5;
// The server sends a comment every 15 s: a stream that is silent for longer has died without saying so.
const SILENT_S = 40;

export class ApiError extends Error {
  constructor(status, message, next = "", answer = {}) {
    super(message);
    this.status = status;
    this.next = next;
    // All that was answered.
    this.answer = answer;
  }
}

let askForToken = async () => false;
// Whoever does not want to give the token is not asked for it again by a page that only looks.
let isDeclined = false;

/** How a person is asked for the token: a function of the reason that says whether there is a new one. */
export function onTokenWanted(ask) {
  askForToken = ask;
}

/** Take the token out of the address. */
export function takeToken() {
  const address = new URL(location.href);
  const token = address.searchParams.get("token");
  if (token === null) return;
  keepToken(token);
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
  isDeclined = false;
}

function headers(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function refusal(response) {
  const text = await response.text();
  try {
    const found = JSON.parse(text);
    return new ApiError(
      response.status,
      String(found.error || response.statusText),
      String(found.next || ""),
    );
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `${response.status} ${response.statusText}`);
  }
}

async function request(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch {
    throw new ApiError(
      0,
      "the dashboard's own process does not answer",
      "see whether 'polybus web' still runs",
    );
  }
  if (!response.ok) throw await refusal(response);
  return response.json();
}

async function withToken(call, isWanted = true) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    try {
      return await call();
    } catch (error) {
      if (error.status !== 401) throw error;
      // Somebody else was asked meanwhile.
      if (sessionStorage.getItem(KEY) !== used) continue;
      if (isDeclined && !isWanted) throw error;
      if (!(await askForToken(error.message))) {
        isDeclined = true;
        throw error;
      }
    }
  }
}

/** The answer to a question: get("/api/jobs", {state: "queued"}). Empty parameters are left out. */
export function get(path, parameters = {}) {
  return withToken(() => request("GET", address(path, parameters)), false);
}

/** An action. It needs the token; whoever has none or a wrong one is asked for it. */
export function act(method, path, body) {
  return withToken(() => request(method, path, method === "POST" ? body || {} : undefined));
}

export function address(path, parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined),
  );
  return [...query].length ? `${path}?${query}` : path;
}

// -- streams --------------------------------------------------------------------------------------

/** Follow a stream until the function that is returned is called; a stream that breaks is begun again.
 *
 * `on.event(name, data)`, `on.open()`, `on.broken(error)`. */
export function follow(path, on) {
  const whole = new AbortController();
  let pause = FIRST_PAUSE_S;
  const run = async () => {
    while (!whole.signal.aborted) {
      try {
        const opened = () => {
          pause = FIRST_PAUSE_S;
        };
        await withToken(() => read(path, whole.signal, on, opened), false);
        throw new ApiError(0, "the dashboard's own process closed the connection");
      } catch (error) {
        if (whole.signal.aborted) return;
        on.broken?.(error);
      }
      await new Promise((done) => setTimeout(done, pause * 1000));
      pause = Math.min(LONGEST_PAUSE_S, pause * 2);
    }
  };
  run();
  return () => whole.abort();
}

async function read(path, signal, on, opened) {
  const one = new AbortController();
  const stop = () => one.abort();
  signal.addEventListener("abort", stop, { once: true });
  let watch = setTimeout(stop, SILENT_S * 1000);
  try {
    const response = await fetch(path, {
      headers: headers({ Accept: "text/event-stream" }),
      signal: one.signal,
      cache: "no-store",
    }).catch(() => {
      throw new ApiError(
        0,
        "the dashboard's own process does not answer",
        "see whether 'polybus web' still runs",
      );
    });
    if (!response.ok) throw await refusal(response);
    opened();
    on.open?.();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new Events(on);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(stop, SILENT_S * 1000);
      parser.feed(value);
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", stop);
    one.abort();
  }
}

/** Lines of text/event-stream become events. */
class Events {
  constructor(on) {
    this.on = on;
    this.rest = "";
    this.name = "";
    this.data = [];
  }

  feed(text) {
    const lines = (this.rest + text).split(/\r\n|\n/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }

  tell() {
    try {
      this.on.event(this.name || "message", JSON.parse(this.data.join("\n")));
    } catch (error) {
      // A mistake of ours is no fault of the connection.
      reportError(error);
    }
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.tell();
      this.name = "";
      this.data = [];
    } else if (line.startsWith("data:")) {
      this.data.push(line.slice(line[5] === " " ? 6 : 5));
    } else if (line.startsWith("event:")) {
      this.name = line.slice(6).trim();
    }
  }
}
