// The device that was picked: what it does, why it is left out, what would bring it in; and its steps, CPU and power to
// change.

import { clear, el, uid } from "../dom.js";
import { dbm, human, num, watt } from "../format.js";
import { slider } from "./slider.js";

/** `act`: select(index), change(index, values), restore(index). Returns {node, show(views, state)}. */
export function inspector(act) {
  let shown = null;
  const pickId = uid("device");
  const pick = el("select", { id: pickId, onchange: () => act.select(pick.value === "" ? null : Number(pick.value)) });
  const facts = el("div", { class: "facts" });
  const steps = slider({ label: "Steps", low: 1, high: 40, linear: true, whole: true, onInput: (tau) => act.change(shown, { tau }) });
  const cpu = slider({ label: "CPU", low: 1e8, high: 2e10, unit: "Hz", onInput: (cpu_hz) => act.change(shown, { cpu_hz }) });
  const power = slider({ label: "Power", low: -40, high: 46, linear: true, unit: "dBm",
    onInput: (level) => act.change(shown, { power_w: watt(level) }) });
  const restore = el("button", { type: "button", class: "quiet", onclick: () => act.restore(shown) }, "Undo its changes");
  const edits = el("div", { class: "edits" }, steps.node, cpu.node, power.node);
  const node = el("div", { class: "inspector" },
    el("div", { class: "pick" }, el("label", { for: pickId }, "Device"), pick, restore), facts, edits);
  let names = "";

  function show(views, state) {
    const devices = views[0].devices, key = devices.map((one) => one.name).join("\n");
    if (key !== names) {
      names = key;
      clear(pick, el("option", { value: "" }, "pick one"), ...devices.map((one) => el("option", { value: one.index }, one.name)));
    }
    shown = state.selected;
    pick.value = shown === null ? "" : String(shown);
    const device = shown === null ? null : devices[shown];
    edits.hidden = device === null;
    restore.hidden = device === null || !(shown in state.changes);
    clear(facts, ...(device === null ? [hint()] : views.map((view) => factsOf(view, view.devices[shown], views.length > 1))));
    if (device === null) return;
    steps.show(device.tau);
    cpu.node.hidden = device.cpu_hz === null;
    if (device.cpu_hz !== null) cpu.show(device.cpu_hz);
    power.node.hidden = device.power_w === null;
    if (device.power_w !== null) power.show(Number(dbm(device.power_w).toFixed(2)));
  }
  return { node, show };
}

function hint() {
  return el("p", { class: "soft" }, "Drag a device, or pick one: its steps, CPU and power can be changed; so can its steps with the wheel.");
}

/** What a view tells of a device, in lines. */
export function factsOf(view, device, named = false) {
  const head = el("p", { class: "verdict" }, named ? el("strong", {}, `${view.policy}: `) : null,
    device.sends ? el("span", { class: "yes" }, `sends on ${human(device.bandwidth_hz, "Hz")}, done after ${human(device.finish_s, "s")}`)
      : el("span", {}, el("span", { class: "no" }, device.reason ?? "does not send"), device.remedy ? `; ${device.remedy}` : ""));
  const lines = [
    ["steps", num(device.tau)],
    ["computing", human(device.compute_s, "s")],
    device.sends ? ["sending", human(device.upload_s, "s")] : ["least bandwidth", device.needed_hz === null ? "none does" : human(device.needed_hz, "Hz")],
    device.distance_m === null ? null : ["distance", human(device.distance_m, "m")],
  ].filter(Boolean);
  return el("div", { class: "of-policy" }, head,
    named ? null : el("dl", {}, lines.flatMap(([what, value]) => [el("dt", {}, what), el("dd", { class: "number" }, value)])));
}
