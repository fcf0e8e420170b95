// The Cell screen: a state, an answer, and parts that show both.

import { clear, el } from "../dom.js";
import { human } from "../format.js";
import { bar } from "./bar.js";
import { controls } from "./controls.js";
import { saveDevices, saveJson, savePng, saveSchedule, saveSvg } from "./files.js";
import { inspector } from "./inspector.js";
import { light } from "./light.js";
import { drawMap } from "./map.js";
import { proofOf, results } from "./results.js";
import { Solver } from "./solver.js";
import { change, devicesOf, firstState, packed, unpacked, withCell, withDevices } from "./state.js";
import { table } from "./table.js";

const PLAY_EVERY_MS = 700;
const KEYS = "Keys on the map: N and P pick the next and previous device, arrows move it (with Shift a little), + and - change its steps.";

export function mount(root, context) {
  let state = firstState(), views = [], playing = null, frame = 0, said = "";
  const act = { slide, policy, options, compare, round, play, seed, devices, select, change: changeDevice, restore, file, run, save, link, reset };
  const top = bar(act, async () => (await context.api.get("/api/runs")).runs);
  const strip = controls(context.about, act), picked = inspector(act), right = results(select), list = table(select);
  const map = el("div", { class: "map-holder" }), wrong = el("p", { class: "error", role: "alert" });
  top.node.append(wrong);
  clear(root, top.node,
    el("section", { class: "panel cell-panel", "aria-label": "The cell" }, map,
      el("p", { class: "legend" }, mark("sends"), "sends ", mark("waits"), "left out ", mark("cannot"), "cannot in time"),
      el("p", { id: "map-keys", class: "unseen" }, KEYS), picked.node),
    right.node, strip.node, list.node);
  const lit = light(root, () => views);
  const solver = new Solver(context.api, { onViews: answered, onError: refused });
  const sizes = new ResizeObserver(() => later());
  sizes.observe(right.node);
  root.addEventListener("dragover", over);
  root.addEventListener("drop", dropped);
  begin();

  async function begin() {
    const told = context.parameters;
    try {
      if (told.get("view")) state = await unpacked(told.get("view"));
      else if (told.get("run")) return await run(told.get("run"), Number(told.get("round")) || 0);
    } catch (error) {
      tell(`This link cannot be shown: ${error.message}`);
    }
    refresh();
  }

  /** Show the controls as they are now, and ask for the answer. */
  function refresh() {
    strip.show(state, playing !== null);
    top.show(state);
    solver.ask(state);
  }

  function answered(found, took_ms) {
    views = found;
    tell("");
    strip.say(null);
    drawAll();
    const one = views[0];
    clear(context.status, el("span", { class: "chip" }, one.policy),
      el("span", { class: "chip number", title: `${human(took_ms / 1e3, "s")} with the way there and back` }, `${one.solve_ms.toFixed(1)} ms`),
      el("span", { class: `chip ${one.proven ? "good" : ""}` }, one.proven ? "✓ proven" : proofOf(one)));
    const news = views.map((view) => `${view.policy}: ${view.num_selected} of ${view.devices.length} send, ${proofOf(view)}`).join("; ");
    if (news !== said) context.announce(news);
    said = news;
    root.dataset.answers = String(Number(root.dataset.answers ?? 0) + 1);
    root.dataset.tookMs = took_ms.toFixed(1);
  }

  function refused(error) {
    if (playing !== null) play();
    if (!strip.say(error)) tell(error.message);
    else tell("");
  }

  function tell(message) {
    wrong.textContent = message;
    wrong.hidden = message === "";
  }

  function later() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(drawAll);
  }

  function drawAll() {
    if (views.length === 0) return;
    drawMap(map, views[0], { selected: state.selected, onSelect: select, onMove: move, onSteps: steps });
    right.show(views, state);
    picked.show(views, state);
    list.show(views, state);
    top.show(state);
    lit.again();
  }

  function slide(name, value) {
    state.sliders[name] = value;
    refresh();
  }
  function policy(place, name) {
    state.policies[place] = { policy: name, options: {} };
    refresh();
  }
  function options(place, given) {
    state.policies[place].options = given;
    refresh();
  }
  function compare() {
    const other = state.policies[0].policy === "greedy" ? "exact" : "greedy";
    state.policies = state.policies.length > 1 ? state.policies.slice(0, 1) : [...state.policies, { policy: other, options: {} }];
    refresh();
  }
  function round(index) {
    state.round = Math.max(0, index);
    refresh();
  }
  function play() {
    if (playing !== null) {
      clearInterval(playing);
      playing = null;
    } else {
      playing = setInterval(() => round(state.round + 1), PLAY_EVERY_MS);
    }
    strip.show(state, playing !== null);
  }
  function seed(number) {
    state.seed = number;
    state.changes = {};
    refresh();
  }
  function devices(number) {
    state.source = { ...state.source, wireless: { ...state.source.wireless, num_devices: number } };
    state.changes = {};
    state.selected = null;
    refresh();
  }
  function select(index) {
    state.selected = index;
    drawAll();
    if (index !== null && views.length) {
      const one = views[0].devices[index];
      context.announce(`Device ${one.name}: ${one.sends ? `sends on ${human(one.bandwidth_hz, "Hz")}` : `${one.reason}; ${one.remedy ?? ""}`}`);
      if (views[0].devices.length > 64) solver.ask(state);  // of many devices, only the picked one is told all
    }
  }
  function move(index, x_m, y_m) {
    change(state, index, { x_m, y_m });
    refresh();
  }
  function steps(index, by) {
    state.selected = index;
    changeDevice(index, { tau: Math.max(1, Math.round(views[0].devices[index].tau) + by) });
  }
  function changeDevice(index, values) {
    change(state, index, values);
    refresh();
  }
  function restore(index) {
    delete state.changes[index];
    refresh();
  }
  function reset() {
    if (playing !== null) play();
    state = firstState();
    refresh();
  }

  async function file(given) {
    try {
      const text = await given.text();
      if (given.name.toLowerCase().endsWith(".json")) state = fromJson(text);
      else {
        const told = await context.api.post("/api/cell/load", { name: given.name, text });
        state = told.kind === "cell" ? withCell(state, told, given.name) : withDevices(state, told.devices, given.name);
        if (told.remarks.length) context.announce(told.remarks.join(" "));
      }
      refresh();
    } catch (error) {
      tell(`${given.name} cannot be shown: ${error.message}`);
    }
  }

  async function run(id, index) {
    try {
      const path = id.split("/").map(encodeURIComponent).join("/");
      const view = await context.api.get(`/api/runs/${path}/rounds/${index}`);
      const sliders = { bandwidth_hz: view.bandwidth_hz, deadline_s: view.deadline_s, gamma: view.gamma };
      state = withDevices(state, devicesOf(view), `${id}, round ${index}`, sliders);
      if (context.about.policies.some((one) => one.name === view.policy && one.alone)) state.policies[0] = { policy: view.policy, options: {} };
      refresh();
    } catch (error) {
      tell(`Round ${index} of ${id} cannot be shown: ${error.message}`);
      if (views.length === 0) refresh();
    }
  }

  async function save(kind) {
    if (views.length === 0) return;
    if (kind === "csv") saveSchedule(views);
    else if (kind === "devices") saveDevices(views[0]);
    else if (kind === "json") saveJson(state, views);
    else if (kind === "svg") saveSvg(root, views);
    else await savePng(root, views);
  }

  async function link() {
    const hash = `#/cell?view=${await packed(state)}`;
    history.replaceState(null, "", hash);
    try {
      await navigator.clipboard.writeText(location.href);
      context.announce("The link is copied.");
    } catch {
      context.announce("The link is in the address of this page.");
    }
  }

  function over(event) {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  }
  function dropped(event) {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    file(event.dataTransfer.files[0]);
  }

  return () => {
    if (playing !== null) clearInterval(playing);
    cancelAnimationFrame(frame);
    solver.end();
    sizes.disconnect();
    lit.stop();
    root.removeEventListener("dragover", over);
    root.removeEventListener("drop", dropped);
    root.classList.remove("has-light");
  };
}

function mark(kind) {
  return el("span", { class: `mark ${kind}`, "aria-hidden": "true" });
}

function fromJson(text) {
  const told = JSON.parse(text);
  if (told?.flare !== "cell") throw new Error("it is no JSON that this screen saved");
  const state = { ...firstState(), ...told.state };
  for (const one of ["source", "sliders", "policies", "changes"]) if (typeof state[one] !== "object" || !state[one]) throw new Error(`${one} is missing`);
  return state;
}
