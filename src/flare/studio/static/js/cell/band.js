// Who gets which part of the band, in the order of the Gantt chart.

import { clear, svg } from "../dom.js";
import { human } from "../format.js";
import { senders } from "./order.js";

const HEIGHT = 46, TOP = 2, STRIP = 28;

/** Options: `selected`, `onSelect(index)`. */
export function drawBand(container, view, options = {}) {
  const width = Math.max(260, container.clientWidth || 560), order = senders(view);
  const x = (hz) => (width * hz) / view.bandwidth_hz;
  const parts = [svg("rect", { class: "unused", x: 0, y: TOP, width, height: STRIP })];
  let from = 0;
  order.forEach((device, place) => {
    parts.push(share(device, x(from), x(device.bandwidth_hz), place, options));
    from += device.bandwidth_hz;
  });
  if (order.length === 0) parts.push(svg("text", { class: "note", x: width / 2, y: TOP + STRIP / 2 }, "unused: nobody sends"));
  const free = view.bandwidth_hz - from;
  const rest = free > 1e-6 * view.bandwidth_hz && order.length ? `, ${human(free, "Hz")} unused` : "";
  parts.push(svg("text", { class: "tick start", x: 0, y: HEIGHT - 3 }, "0"));
  parts.push(svg("text", { class: "tick end", x: width, y: HEIGHT - 3 }, `${human(view.bandwidth_hz, "Hz")}${rest}`));
  clear(container, svg("svg", { class: "band", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img",
    "aria-label": `The band of ${human(view.bandwidth_hz, "Hz")}, divided among ${order.length} senders` }, parts));
}

function share(device, x, width, place, options) {
  const selected = options.selected === device.index ? " selected" : "";
  const wide = width - 6 > 7.2 * device.name.length;
  return svg("g", { class: `share${place % 2 ? " odd" : ""}${selected}`, "data-device": device.index,
    onclick: () => options.onSelect?.(device.index) },
    svg("rect", { x: x + 0.5, y: TOP, width: Math.max(0.4, width - 1), height: STRIP }),
    wide ? svg("text", { x: x + width / 2, y: TOP + STRIP / 2 }, device.name) : null);
}
