// Words and numbers of the Runs screen.

import { human, num } from "../format.js";

export const STATES = {
  running: "goes on",
  finished: "finished",
  reached: "reached its target",
  diverged: "diverged",
  interrupted: "interrupted",
  stopped: "stopped: its process is gone",
  damaged: "cannot be read",
  reading: "being read",
};

/** What a run can be resumed from. */
export function canResume(line) {
  return (line.state === "interrupted" || line.state === "stopped") && line.kind === "simulation";
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`;
}

/** A mean and half its 95 % interval, as per cent. */
export function withHalf({ mean, half }) {
  if (mean === null) return "–";
  return half === null ? percent(mean) : `${(100 * mean).toFixed(1)} ± ${(100 * half).toFixed(1)} %`;
}

export function points(value) {
  if (value === null || value === undefined) return "–";
  const text = (100 * Math.abs(value)).toFixed(2);
  return `${value < 0 ? "−" : "+"}${text}`;
}

export function duration(seconds) {
  return seconds === null || seconds === undefined ? "–" : seconds < 120 ? human(seconds, "s") : clock(seconds);
}

function clock(seconds) {
  const hours = Math.floor(seconds / 3600), minutes = Math.floor((seconds % 3600) / 60);
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.round(seconds % 60)} s`;
}

const PERCENT = new Set(["accuracy"]);

/** A value of a quantity, as an axis or a readout says it. */
export function shown(metric, value) {
  if (value === null || value === undefined) return "–";
  if (PERCENT.has(metric)) return percent(value);
  if (metric === "gap") return percent(value, 2);
  if (/_s$/.test(metric)) return duration(value);
  if (/_j$/.test(metric)) return human(value, "J");
  if (/bits$/.test(metric)) return human(value, "bit");
  return num(value, 4);
}

/** A place on an axis. */
export function place(x, value) {
  if (x === "rounds") return `round ${Math.round(value)}`;
  return x === "time" ? duration(value) : human(value, x === "energy" ? "J" : "bit");
}

/** How long ago, in words. */
export function ago(time) {
  const s = Date.now() / 1000 - time;
  if (s < 60) return "now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}
