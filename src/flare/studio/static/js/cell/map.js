// The cell from above. `drawMap(container, view, options)` draws into a container, or changes what it drew there before:
// of a thousand devices only what differs is touched, so that dragging stays smooth.

import { clear, svg } from "../dom.js";
import { human } from "../format.js";

const HALF = 260;  // of the drawing, in its own units
const EDGE = 238;  // where the radius of the cell lies
const CANNOT = /^(too slow|channel too|channels too|must not)/;

/** Options: `selected` (index or null), `onSelect(index)`, `onMove(index, x_m, y_m)`, `onSteps(index, by)`. Without
 *  `onMove` devices stay where they are. */
export function drawMap(container, view, options = {}) {
  const map = container.flareMap ?? newMap(container);
  map.options = options;
  map.view = view;
  drawRings(map, view.radius_m ?? 1);
  const few = view.devices.length <= 120;
  map.root.classList.toggle("many", !few);
  while (map.nodes.length > view.devices.length) removeDevice(map, map.nodes.pop());
  view.devices.forEach((device, at) => {
    if (at >= map.nodes.length) map.nodes.push(addDevice(map, at));
    placeDevice(map, map.nodes[at], device, few);
  });
  const sending = view.devices.filter((one) => one.sends).length;
  map.root.setAttribute("aria-label", `The cell from above: ${sending} of ${view.devices.length} devices send`);
}

function newMap(container) {
  const layers = { rings: svg("g"), beams: svg("g"), others: svg("g"), senders: svg("g") };
  const station = svg("g", { class: "station" }, svg("path", { d: "M0 -13 L9 9 L-9 9 Z" }), svg("title", {}, "base station"));
  const root = svg(
    "svg",
    { class: "map", viewBox: `${-HALF} ${-HALF} ${2 * HALF} ${2 * HALF}`, role: "application", tabindex: "0",
      "aria-roledescription": "map of devices", "aria-describedby": "map-keys" },
    layers.rings, layers.beams, station, layers.others, layers.senders,
  );
  clear(container, root);
  const map = { root, layers, nodes: [], scale: 1, radius: null, held: null, options: {}, view: null };
  container.flareMap = map;
  root.addEventListener("pointerdown", (event) => grab(map, event));
  root.addEventListener("pointermove", (event) => drag(map, event));
  for (const name of ["pointerup", "pointercancel"]) root.addEventListener(name, (event) => drop(map, event));
  root.addEventListener("wheel", (event) => turn(map, event), { passive: false });
  root.addEventListener("keydown", (event) => press(map, event));
  return map;
}

function drawRings(map, radius) {
  if (map.radius === radius) return;
  map.radius = radius;
  map.scale = EDGE / radius;
  const step = niceStep(radius / 3);
  const rings = [svg("circle", { class: "cell-edge", r: EDGE })];
  for (let far = step; far < 0.97 * radius; far += step) {
    rings.push(svg("circle", { class: "ring", r: far * map.scale }));
    rings.push(svg("text", { class: "ring-label", x: 0, y: far * map.scale - 4 }, human(far, "m")));
  }
  rings.push(svg("text", { class: "ring-label", x: 0, y: EDGE + 16 }, human(radius, "m")));
  clear(map.layers.rings, ...rings);
}

function niceStep(about) {
  const size = 10 ** Math.floor(Math.log10(about));
  return size * [1, 2, 5, 10].find((each) => each * size >= 0.75 * about);
}

function addDevice(map, at) {
  const mark = svg("circle"), cross = svg("path", { d: "M-3.6 -3.6 L3.6 3.6 M3.6 -3.6 L-3.6 3.6" }), label = svg("text");
  const beam = svg("line", { "data-device": at, x1: 0, y1: 0 });
  const group = svg("g", { "data-device": at }, svg("circle", { class: "touch", r: 15 }), mark, cross, label);
  map.layers.beams.append(beam);
  return { group, mark, cross, label, beam, shown: "" };
}

function removeDevice(map, node) {
  node.group.remove();
  node.beam.remove();
}

function placeDevice(map, node, device, few) {
  const held = map.held?.at === device.index ? map.held : null;
  const x = (held ? held.x_m : device.x_m ?? 0) * map.scale, y = -(held ? held.y_m : device.y_m ?? 0) * map.scale;
  const selected = map.options.selected === device.index;
  const share = device.sends ? device.bandwidth_hz / map.view.bandwidth_hz : 0;
  const shown = [x, y, device.sends, device.reason, selected, few, share, device.name].join("|");
  if (node.shown === shown) return;
  node.shown = shown;
  const layer = device.sends ? map.layers.senders : map.layers.others;  // senders lie above the others
  if (node.group.parentNode !== layer) layer.append(node.group);
  const kind = device.sends ? "sends" : CANNOT.test(device.reason ?? "") ? "cannot" : "waits";
  node.group.setAttribute("class", `device ${kind}${selected ? " selected" : ""}`);
  node.group.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
  node.mark.setAttribute("r", device.sends ? (few ? 11 : 6) : few ? 6.5 : 4);
  node.label.textContent = few && device.sends && device.name.length <= 3 ? device.name : "";
  node.beam.setAttribute("x2", x.toFixed(2));
  node.beam.setAttribute("y2", y.toFixed(2));
  node.beam.setAttribute("class", device.sends ? "beam" : "beam none");
  node.beam.setAttribute("stroke-width", (1 + 26 * share).toFixed(2));
}

/** Where in the cell a pointer is, in metre; at most a little outside its edge. */
function placeOf(map, event) {
  const box = map.root.getBoundingClientRect();
  const size = Math.min(box.width, box.height);
  const x = ((event.clientX - box.left - box.width / 2) / size) * 2 * HALF;
  const y = ((event.clientY - box.top - box.height / 2) / size) * 2 * HALF;
  const far = Math.hypot(x, y), most = HALF - 12;
  const shrink = far > most ? most / far : 1;
  return { x_m: (x * shrink) / map.scale, y_m: (-y * shrink) / map.scale };
}

function deviceOf(event) {
  const group = event.target.closest?.("g[data-device]");
  return group ? Number(group.dataset.device) : null;
}

function grab(map, event) {
  const at = deviceOf(event);
  if (at === null || event.button !== 0) return;
  map.options.onSelect?.(at);
  if (!map.options.onMove) return;
  const device = map.view.devices[at];
  map.held = { at, x_m: device.x_m, y_m: device.y_m, pointer: event.pointerId, moved: false };
  map.root.setPointerCapture(event.pointerId);
  map.root.classList.add("dragging");
}

function drag(map, event) {
  if (map.held?.pointer !== event.pointerId) return;
  const place = placeOf(map, event);
  Object.assign(map.held, place, { moved: true });
  placeDevice(map, map.nodes[map.held.at], map.view.devices[map.held.at], map.view.devices.length <= 120);
  map.options.onMove(map.held.at, place.x_m, place.y_m);
}

function drop(map, event) {
  if (map.held?.pointer !== event.pointerId) return;
  const { at, moved, x_m, y_m } = map.held;
  map.held = null;
  map.root.classList.remove("dragging");
  if (moved) map.options.onMove(at, x_m, y_m);
}

function turn(map, event) {
  const at = deviceOf(event);
  if (at === null || !map.options.onSteps) return;
  event.preventDefault();
  map.options.onSteps(at, event.deltaY < 0 ? 1 : -1);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Keys: N and P go from device to device, arrows move it, + and - change its steps. */
function press(map, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { selected, onSelect, onMove, onSteps } = map.options, number = map.view.devices.length;
  const key = event.key;
  if (key === "n" || key === "PageDown") onSelect?.(selected === null ? 0 : (selected + 1) % number);
  else if (key === "p" || key === "PageUp") onSelect?.(selected === null ? number - 1 : (selected + number - 1) % number);
  else if (key in ARROWS && selected !== null && onMove) {
    const [right, up] = ARROWS[key], step = (event.shiftKey ? 0.01 : 0.04) * map.radius, device = map.view.devices[selected];
    onMove(selected, device.x_m + right * step, device.y_m + up * step);
  } else if ((key === "+" || key === "-") && selected !== null && onSteps) onSteps(selected, key === "+" ? 1 : -1);
  else return;
  event.preventDefault();
}
