// How numbers are worded: short on the page, exact in the title of the same element.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const NOTHING = "–";

export const none = NOTHING;

/** 1536 -> "1.5 KiB" */
export function bytes(n) {
  if (n === null || n === undefined) return NOTHING;
  let value = Number(n);
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function exactBytes(n) {
  return n === null || n === undefined ? "none" : `${exact(n)} bytes`;
}

export function exact(n) {
  return Number(n).toLocaleString("en-US");
}

/** 1234567 -> "1.23M"; exact below ten thousand. */
export function count(n) {
  if (n === null || n === undefined) return NOTHING;
  for (const [unit, scale] of [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]) {
    if (n >= Math.max(scale, 9999.5)) return `${significant(n / scale)}${unit}`;
  }
  return exact(Math.round(n));
}

function significant(value) {
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Of 0 to 100, with one decimal; only all of it is 100.0 %, and only nothing 0.0 %. */
export function percent(part, whole) {
  if (!whole) return NOTHING;
  const value = (100 * part) / whole;
  if (part > 0 && value < 0.05) return "<0.1 %";
  return `${(part < whole ? Math.min(value, 99.9) : value).toFixed(1)} %`;
}

export function tokensPerSecond(n) {
  if (n === null || n === undefined) return NOTHING;
  return `${n >= 10 || n === 0 ? count(n) : n.toFixed(1)} tokens/s`;
}

export function bytesPerSecond(n) {
  return n === null || n === undefined ? NOTHING : `${bytes(Math.round(n))}/s`;
}

/** The two largest units that apply. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 59.5) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** "1.5 GiB" or "4096" -> whole bytes; "" -> null. Throws with what to write instead. */
export function parseBytes(text) {
  const given = text.trim();
  if (given === "") return null;
  const parts = /^([0-9][0-9_, ]*(?:\.[0-9]+)?)\s*([a-z]*)$/i.exec(given);
  const unit =
    parts &&
    { "": 0, b: 0, k: 1, kib: 1, m: 2, mib: 2, g: 3, gib: 3, t: 4, tib: 4, p: 5, pib: 5 }[parts[2].toLowerCase()];
  if (parts === null || unit === undefined)
    throw new Error(`Write bytes, or a number with KiB, MiB, GiB or TiB, not “${given.slice(0, 40)}”.`);
  const value = Math.round(Number(parts[1].replaceAll(/[_, ]/g, "")) * 1024 ** unit);
  if (!Number.isSafeInteger(value)) throw new Error("That is more bytes than can be counted.");
  return value;
}

/** What parseBytes reads back to the same number. */
export function bytesInput(n) {
  if (n === null || n === undefined) return "";
  for (let unit = UNITS.length - 1; unit > 0; unit -= 1) {
    const value = n / 1024 ** unit;
    if (value >= 1 && Number.isInteger(value * 4)) return `${value} ${UNITS[unit]}`;
  }
  return String(n);
}

/** What was found of the tokens asked for. */
export function found(tokens) {
  return tokens.hot + tokens.peer + tokens.redis;
}

export const TIERS = [
  { key: "hot", label: "Hot" },
  { key: "peer", label: "Peer" },
  { key: "redis", label: "Redis" },
  { key: "missed", label: "Missed" },
];
