// Numbers as people write them, and back: "10 MHz", "400 ms".

const STEPS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
const SIZES = { T: 1e12, G: 1e9, M: 1e6, k: 1e3, K: 1e3, "": 1, m: 1e-3, "µ": 1e-6, u: 1e-6, n: 1e-9 };

/** A number in so many digits, without zeros behind it that say nothing. */
export function num(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = Number(value.toPrecision(digits));
  return Math.abs(text) >= 1e6 || (text !== 0 && Math.abs(text) < 1e-4) ? text.toExponential() : String(text);
}

/** A number with its unit and a prefix: human(4e5, "Hz") is "400 kHz". */
export function human(value, unit, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return num(value);
  if (value === 0 || unit.startsWith("dB")) return `${num(value, digits)} ${unit}`;
  const near = 1 - 0.5 * 10 ** -digits;
  const [size, prefix] = STEPS.find(([each]) => Math.abs(value) >= each * near) ?? [1, ""];
  return `${num(value / size, digits)} ${prefix}${unit}`;
}

/** The number that a text such as "10 MHz", "0.4 s" or "1e6" means in `unit`; null where it means none. */
export function quantity(text, unit) {
  const found = /^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([TGMkKmµun]?)(.*?)\s*$/i.exec(text.replace("−", "-"));
  if (!found) return null;
  const [, number, prefix, rest] = found;
  const tail = `${prefix}${rest}`;
  if (tail === "" || tail.toLowerCase() === unit.toLowerCase()) return Number(number);
  if (rest.toLowerCase() !== unit.toLowerCase() && rest !== "") return null;
  const size = SIZES[prefix] ?? SIZES[prefix.toUpperCase()] ?? null;
  return size === null ? null : Number(number) * size;
}

export const watt = (dbm) => 1e-3 * 10 ** (dbm / 10);
export const dbm = (power) => 10 * Math.log10(power * 1e3);

/** "1 device", "2,000 devices". */
export function counted(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}
