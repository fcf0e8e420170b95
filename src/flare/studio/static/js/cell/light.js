// Hovering a device lights it everywhere: on the map, its bar, its share of the band and its row; and says what it does.

import { clear, el } from "../dom.js";
import { factsOf } from "./inspector.js";

/** Follow the pointer over `root`; `views()` gives what is shown. Returns a function that stops, and `again`. */
export function light(root, views) {
  const tip = el("div", { class: "tip", role: "tooltip", hidden: true });
  root.append(tip);
  let lit = null;

  function set(at, event) {
    if (at !== lit) {
      for (const node of root.querySelectorAll(".lit")) node.classList.remove("lit");
      lit = at;
      again();
    }
    root.classList.toggle("has-light", at !== null);
    const now = views();
    tip.hidden = at === null || !now.length || event === null || event.target.closest?.("tr") !== null;
    if (tip.hidden) return;
    const device = now[0].devices[at];
    if (!device) return;
    clear(tip, el("strong", {}, `Device ${device.name}`), ...now.map((view) => factsOf(view, view.devices[at], now.length > 1)));
    const wide = 300, left = Math.min(event.clientX + 16, innerWidth - wide - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${event.clientY + (event.clientY > innerHeight - 190 ? -150 : 18)}px`;
  }
  /** What was drawn anew is lit as before. */
  function again() {
    if (lit === null) return;
    for (const node of root.querySelectorAll(`[data-device="${lit}"]`)) node.classList.add("lit");
  }
  function over(event) {
    const node = event.target.closest?.("[data-device]");
    set(node ? Number(node.dataset.device) : null, event);
  }
  const leave = () => set(null, null);
  const focus = (event) => {
    const node = event.target.closest?.("tr[data-device]");
    if (node) set(Number(node.dataset.device), null);
  };
  root.addEventListener("pointermove", over);
  root.addEventListener("pointerleave", leave);
  root.addEventListener("focusin", focus);
  return {
    again,
    stop() {
      root.removeEventListener("pointermove", over);
      root.removeEventListener("pointerleave", leave);
      root.removeEventListener("focusin", focus);
      tip.remove();
    },
  };
}
