// All devices as rows: the same numbers to read, to search and to reach by keyboard.

import { clear, el, uid } from "../dom.js";
import { human, num } from "../format.js";

const MAX_SHOWN = 300;
const REST_MS = 200;  // of many devices the rows wait until nothing has changed for so long

/** Returns {node, show(views, state)}. */
export function table(onSelect) {
  const body = el("tbody"), head = el("thead"), note = el("p", { class: "soft" });
  const id = uid("search");
  const search = el("input", { type: "search", id, placeholder: "name or reason" });
  const node = el("details", { class: "panel devices", open: true },
    el("summary", {}, el("h2", {}, "Devices, and why some are left out")),
    el("div", { class: "line" }, el("label", { for: id }, "Find"), search, note),
    el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of devices" }, el("table", {}, head, body)));
  let last = null, timer = 0;
  const now = () => last && draw(...last);
  search.addEventListener("input", now);
  node.addEventListener("toggle", now);

  function show(views, state) {
    last = [views, state];
    clearTimeout(timer);
    if (views[0].devices.length <= 60) now();
    else timer = setTimeout(now, REST_MS);
  }
  function draw(views, state) {
    if (!node.open) return;
    const two = views.length > 1, words = search.value.trim().toLowerCase();
    const found = views[0].devices.filter((one) => !words || `${one.name} ${views.map((view) => view.devices[one.index].reason ?? "sends").join(" ")}`.toLowerCase().includes(words));
    const order = found.sort((a, b) => b.sends - a.sends || b.bandwidth_hz - a.bandwidth_hz || a.index - b.index).slice(0, MAX_SHOWN);
    note.textContent = found.length > order.length ? `the first ${order.length} of ${found.length}` : "";
    clear(head, el("tr", {}, th("Device"), th("Steps", 1), th("Distance", 1), th("Computing", 1), ...views.flatMap((view) => [
      th(two ? `${view.policy}: bandwidth` : "Bandwidth", 1), th("Done after", 1), th("Left out because, and what would bring it in")])));
    clear(body, ...order.map((one) => row(one, views, state, onSelect)));
  }
  return { node, show };
}

function th(text, number) {
  return el("th", { scope: "col", class: number ? "number" : null }, text);
}

function row(device, views, state, onSelect) {
  const cells = views.flatMap((view) => {
    const own = view.devices[device.index];
    return [
      td(own.sends ? human(own.bandwidth_hz, "Hz") : ""),
      td(own.sends ? human(own.finish_s, "s") : ""),
      el("td", {}, own.reason ? [own.reason, own.remedy ? el("span", { class: "soft" }, `; ${own.remedy}`) : null] : ""),
    ];
  });
  const selected = state.selected === device.index;
  return el("tr", { "data-device": device.index, class: `${device.sends ? "sends" : ""}${selected ? " selected" : ""}` },
    el("td", {}, el("button", { type: "button", class: "link", onclick: () => onSelect(device.index), "aria-pressed": String(selected) }, device.name)),
    td(num(device.tau)), td(device.distance_m === null ? "" : human(device.distance_m, "m")), td(human(device.compute_s, "s")), ...cells);
}

function td(text) {
  return el("td", { class: "number" }, text);
}
