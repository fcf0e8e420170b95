// The time of each sender: computing hatched in orange, sending in blue, until it is done. Rows can be handed in, so that
// two schedules stand side by side with the same device at the same height.

import { clear, svg, uid } from "../dom.js";
import { human } from "../format.js";
import { MAX_ROWS, senders } from "./order.js";

const RIGHT = 58, TOP = 22, BOTTOM = 6;

/** Options: `rows` (indices of devices; by default the senders), `selected`, `onSelect(index)`, `end_s` (of the axis). */
export function drawGantt(container, view, options = {}) {
  const width = Math.max(260, container.clientWidth || 560);
  const all = options.rows ?? senders(view).map((one) => one.index);
  const rows = all.slice(0, MAX_ROWS);
  const names = rows.map((at) => view.devices[at].name);
  const left = Math.min(120, 14 + 7.4 * Math.max(2, ...names.map((name) => Math.min(14, name.length))));
  const tall = rows.length > 40 ? 13 : rows.length > 16 ? 17 : rows.length > 12 ? 22 : 26;
  const end = options.end_s ?? endOf(view), height = TOP + rows.length * tall + BOTTOM;
  const x = (time) => left + (width - left - RIGHT) * (time / end);
  const hatch = uid("hatch");
  const parts = [pattern(hatch), ...axis(x, end, height), ...deadline(view, x, height)];
  rows.forEach((at, row) => parts.push(bar(view.devices[at], x, TOP + row * tall, tall, left, width, hatch, options)));
  const root = svg("svg", { class: "gantt", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Time of each of ${senders(view).length} senders, until the deadline of ${human(view.deadline_s, "s")}` }, parts);
  clear(container, root);
  if (all.length > rows.length) container.append(more(all.length - rows.length));
}

/** The last time that a view shows. */
export function endOf(view) {
  const last = Math.max(0, ...view.devices.map((one) => (one.sends ? one.finish_s : 0)));
  return Math.max(view.deadline_s, last) * 1.02;
}

function more(number) {
  const note = document.createElement("p");
  note.className = "soft";
  note.textContent = `… and ${number} more that send`;
  return note;
}

function pattern(id) {
  return svg("defs", {}, svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, class: "computing" }), svg("rect", { width: 2, height: 6, class: "hatch" })));
}

function axis(x, end, height) {
  const rough = end / 5, size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 2.5, 5, 10].find((each) => each * size >= rough) ?? 10);
  const parts = [];
  for (let at = 0; at <= end * 1.0001; at += step) {
    parts.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP - 4, y2: height - BOTTOM }));
    parts.push(svg("text", { class: "tick", x: x(at), y: 12 }, at === 0 ? "0" : human(at, "s")));
  }
  return parts;
}

function deadline(view, x, height) {
  const at = x(view.deadline_s);
  return [svg("line", { class: "deadline", x1: at, x2: at, y1: TOP - 6, y2: height - 1 })];
}

function bar(device, x, y, tall, left, width, hatch, options) {
  const selected = options.selected === device.index;
  const group = svg("g", { class: `row${selected ? " selected" : ""}${device.sends ? "" : " out"}`, "data-device": device.index,
    onclick: () => options.onSelect?.(device.index) });
  const name = device.name.length > 14 ? `${device.name.slice(0, 7)}…${device.name.slice(-6)}` : device.name;
  group.append(
    svg("rect", { class: "back", x: 0, y, width, height: tall }),
    svg("text", { class: "name", x: left - 8, y: y + tall / 2 }, name),
  );
  if (!device.sends) {
    group.append(svg("text", { class: "absent", x: x(0) + 4, y: y + tall / 2 }, "does not send"));
    return group;
  }
  const pad = Math.max(1.5, tall * 0.14), start = x(0), computed = x(device.compute_s), done = x(device.finish_s);
  group.append(
    svg("rect", { x: start, y: y + pad, width: Math.max(0, computed - start), height: tall - 2 * pad, fill: `url(#${hatch})` }),
    svg("rect", { class: "sending", x: computed, y: y + pad, width: Math.max(0.5, done - computed), height: tall - 2 * pad }),
    svg("text", { class: "steps", x: width - RIGHT + 8, y: y + tall / 2 }, `${device.tau} ${device.tau === 1 ? "step" : "steps"}`),
  );
  return group;
}
