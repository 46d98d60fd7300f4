// Numbers, times and bytes as people read them, as the command line writes them.

export const NOTHING = "–";

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NOTHING;
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : trim(value);
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

/** All digits of a count. */
export function exact(value) {
  return value === null || value === undefined ? NOTHING : Number(value).toLocaleString("en");
}

export function rate(value) {
  if (value === null || value === undefined) return NOTHING;
  return value > 0 && value < 10 ? value.toFixed(1) : number(Math.round(value));
}

/** How long a request took: three digits are enough. */
export function took(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${trim(seconds * 1000)} ms`;
  return seconds < 120 ? `${trim(seconds)} s` : span(seconds);
}

/** How long something has lasted. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function share(value) {
  if (value === null || value === undefined) return NOTHING;
  const percent = value * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent < 10 && percent % 1 ? percent.toFixed(1) : Math.round(percent)} %`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return NOTHING;
  for (const [unit, letter] of [
    [1 << 30, "GiB"],
    [1 << 20, "MiB"],
    [1 << 10, "KiB"],
  ]) {
    if (bytes >= unit) return `${trim(bytes / unit)} ${letter}`;
  }
  return `${bytes} B`;
}

/** Seconds since 1970 of a time that the bus gives as such a number or as text, to the microsecond. */
export function epoch(at) {
  if (at === null || at === undefined || at === "") return null;
  if (typeof at === "number") return at;
  const fraction = /\.(\d+)/.exec(at);
  // Date knows milliseconds only.
  const whole = Date.parse(fraction ? at.replace(fraction[0], "") : at) / 1000;
  return fraction ? whole + Number(`0.${fraction[1]}`) : whole;
}

const two = (value) => String(value).padStart(2, "0");

/** The time of day here, to the second or finer. */
export function clock(at, digits = 0) {
  const seconds = epoch(at);
  if (seconds === null || Number.isNaN(seconds)) return NOTHING;
  const date = new Date(seconds * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return digits ? `${time}.${String(Math.floor((seconds % 1) * 10 ** digits)).padStart(digits, "0")}` : time;
}

export function moment(at, digits = 0) {
  const seconds = epoch(at);
  if (!seconds || Number.isNaN(seconds)) return NOTHING;
  const date = new Date(seconds * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(seconds, digits)}`;
}

/** "12 s ago", "in 3 min". */
export function relative(at, now = Date.now() / 1000) {
  const seconds = epoch(at);
  if (!seconds) return NOTHING;
  const distance = seconds - now;
  if (Math.abs(distance) < 1) return "now";
  return distance < 0 ? `${span(-distance)} ago` : `in ${span(distance)}`;
}

export function plural(count, word, many = `${word}s`) {
  return `${exact(count)} ${count === 1 ? word : many}`;
}

// -- bodies ---------------------------------------------------------------------------------------

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** The text of a frame, or null if it is none. */
export function textOf(bytes) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
  // eslint-disable-next-line no-control-regex
  return /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text) ? null : text;
}

/** As `hexdump -C` shows it. */
export function hexdump(bytes) {
  const lines = [];
  for (let begin = 0; begin < bytes.length; begin += 16) {
    const part = [...bytes.slice(begin, begin + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${begin.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n") || "(empty)";
}

/** A body in one line, for a cell. */
export function oneLine(frames, most = 120) {
  const words = frames
    .map((frame) => {
      const bytes = bytesOf(frame);
      const text = textOf(bytes);
      if (text !== null) return text.replace(/\s+/g, " ");
      return [...bytes.slice(0, 24)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    })
    .join(" │ ");
  return words.length > most ? `${words.slice(0, most)}…` : words;
}
