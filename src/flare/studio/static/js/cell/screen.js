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
import { change, devicesOf, firstState, packed, savedState, unpacked, withCell, withDevices } from "./state.js";
import { table } from "./table.js";

const PLAY_EVERY_MS = 700;
const KEYS = "Keys on the map: N and P pick the next and previous device, arrows move it (with Shift a little), + and - change its steps.";

export function mount(root, context) {
  const screen = new CellScreen(root, context);
  screen.begin();
  return () => screen.end();
}

/** Its methods are what the parts call when the user does something. */
class CellScreen {
  constructor(root, context) {
    Object.assign(this, { root, context, state: firstState(), views: [], playing: null, frame: 0, said: "", turn: 0, reading: false });
    const select = (index) => this.select(index);
    this.top = bar(this, async () => (await context.api.get("/api/runs")).runs);
    this.strip = controls(context.about, this);
    this.picked = inspector(this);
    this.right = results(select);
    this.list = table(select);
    this.map = el("div", { class: "map-holder" });
    this.whose = el("p", { class: "soft whose" });
    this.wrong = el("p", { class: "error", role: "alert", hidden: true });
    this.top.node.append(this.wrong);
    clear(root, this.top.node,
      el("section", { class: "panel cell-panel", "aria-label": "The cell" }, this.map,
        el("p", { class: "legend" }, mark("sends"), "sends ", mark("waits"), "left out ", mark("cannot"), "cannot in time"), this.whose,
        el("p", { id: "map-keys", class: "unseen" }, KEYS), this.picked.node),
      this.right.node, this.strip.node, this.list.node);
    this.lit = light(root, () => this.views);
    this.solver = new Solver(context.api, {
      onViews: (views, took_ms) => this.answered(views, took_ms),
      onError: (error) => this.refused(error),
    });
    this.sizes = new ResizeObserver(() => this.later());
    this.sizes.observe(this.right.node);
    this.ending = new AbortController();
    const { signal } = this.ending;
    root.addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); }, { signal });
    root.addEventListener("drop", (event) => this.dropped(event), { signal });
  }

  async begin() {
    const told = this.context.parameters;
    try {
      if (told.get("view")) this.state = await unpacked(told.get("view"));
      else if (told.get("run")) return await this.run(told.get("run"), Number(told.get("round")) || 0);
    } catch (error) {
      this.tell(`This link cannot be shown: ${error.message}`);
    }
    return this.refresh();
  }

  end() {
    this.forgetRound();
    this.stop();
    cancelAnimationFrame(this.frame);
    this.ending.abort();
    this.solver.end();
    this.sizes.disconnect();
    this.lit.stop();
    this.root.classList.remove("has-light");
    delete this.root.dataset.answers;
  }

  /** Show the controls as they are now, and ask for the answer. */
  refresh() {
    this.strip.show(this.state, this.playing !== null);
    this.top.show(this.state);
    this.solver.ask(this.state);
  }

  answered(views, took_ms) {
    this.views = views;
    this.tell("");
    this.strip.say(null);
    this.drawAll();
    this.showStatus(views[0], took_ms);
    const news = views.map((view) => `${view.policy}: ${view.num_selected} of ${view.devices.length} send, ${proofOf(view)}`).join("; ");
    if (news !== this.said) this.context.announce(news);
    this.said = news;
    this.root.dataset.answers = String(Number(this.root.dataset.answers ?? 0) + 1);
    this.root.dataset.tookMs = took_ms.toFixed(1);
  }

  showStatus(view, took_ms) {
    clear(this.context.status, el("span", { class: "chip" }, view.policy),
      el("span", { class: "chip number", title: `${human(took_ms / 1e3, "s")} with the way there and back` }, `${view.solve_ms.toFixed(1)} ms`),
      el("span", { class: `chip ${view.proven ? "good" : ""}` }, view.proven ? "✓ proven" : proofOf(view)));
  }

  refused(error) {
    this.stop();
    this.tell(this.strip.say(error) ? "" : error.message);
  }

  tell(message) {
    this.wrong.textContent = message;
    this.wrong.hidden = message === "";
  }

  later() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawAll());
  }

  drawAll() {
    const { views, state } = this;
    if (views.length === 0) return;
    this.whose.textContent = views.length > 1 ? `The map shows the first policy, ${views[0].policy}.` : "";
    drawMap(this.map, views[0], {
      selected: state.selected,
      onSelect: (index) => this.select(index),
      onMove: (index, x_m, y_m) => this.change(index, { x_m, y_m }),
      onSteps: (index, by) => this.steps(index, by),
    });
    for (const part of [this.right, this.picked, this.list]) part.show(views, state);
    this.top.show(state);
    this.lit.again();
  }

  // what the controls do

  slide(name, value) {
    this.state.sliders[name] = value;
    this.refresh();
  }

  policy(place, name) {
    this.state.policies[place] = { policy: name, options: {} };
    this.refresh();
  }

  options(place, given) {
    this.state.policies[place].options = given;
    this.refresh();
  }

  compare() {
    const { policies } = this.state, other = policies[0].policy === "greedy" ? "exact" : "greedy";
    this.state.policies = policies.length > 1 ? policies.slice(0, 1) : [...policies, { policy: other, options: {} }];
    this.refresh();
  }

  round(index) {
    const { run } = this.state.source;
    if (run) return void this.run(run, Math.max(0, index));
    this.state.round = Math.max(0, index);
    this.refresh();
  }

  play() {
    if (this.playing === null) this.playing = setInterval(() => this.reading || this.round(this.state.round + 1), PLAY_EVERY_MS);
    else this.stop();
    this.strip.show(this.state, this.playing !== null);
  }

  stop() {
    if (this.playing === null) return;
    clearInterval(this.playing);
    this.playing = null;
    this.strip.show(this.state, false);
  }

  seed(number) {
    Object.assign(this.state, { seed: number, changes: {} });
    this.refresh();
  }

  devices(number) {
    const { source } = this.state;
    Object.assign(this.state, { source: { ...source, wireless: { ...source.wireless, num_devices: number } }, changes: {}, selected: null });
    this.refresh();
  }

  /** A round that was asked for and is still to come is not wanted any more. */
  forgetRound() {
    this.turn += 1;
    this.reading = false;
  }

  reset() {
    this.forgetRound();
    this.stop();
    this.state = firstState();
    this.refresh();
  }

  // what is done to a device

  select(index) {
    this.state.selected = index;
    this.drawAll();
    if (index === null || this.views.length === 0) return;
    const one = this.views[0].devices[index];
    this.context.announce(`Device ${one.name}: ${one.sends ? `sends on ${human(one.bandwidth_hz, "Hz")}` : `${one.reason}; ${one.remedy ?? ""}`}`);
    if (this.views[0].devices.length > 64) this.solver.ask(this.state);  // of many devices, only the picked one is told all
  }

  change(index, values) {
    change(this.state, index, values);
    this.refresh();
  }

  steps(index, by) {
    this.state.selected = index;
    this.change(index, { tau: Math.max(1, Math.round(this.views[0].devices[index].tau) + by) });
  }

  restore(index) {
    delete this.state.changes[index];
    this.refresh();
  }

  // what comes in and goes out

  async file(given) {
    try {
      const text = await given.text();
      this.forgetRound();
      if (given.name.toLowerCase().endsWith(".json")) this.state = savedState(text);
      else await this.read(given.name, text);
      this.refresh();
    } catch (error) {
      this.tell(`${given.name} cannot be shown: ${error.message}`);
    }
  }

  async read(name, text) {
    const told = await this.context.api.post("/api/cell/load", { name, text });
    this.state = told.kind === "cell" ? withCell(this.state, told, name) : withDevices(this.state, told.devices, { label: name });
    if (told.remarks.length) this.context.announce(told.remarks.join(" "));
  }

  /** Show a round of a run; of several that were asked for, only the last is. */
  async run(id, index) {
    const mine = ++this.turn;
    this.reading = true;
    try {
      const path = id.split("/").map(encodeURIComponent).join("/");
      const view = await this.context.api.get(`/api/runs/${path}/rounds/${index}`);
      if (mine !== this.turn) return;
      const sliders = { bandwidth_hz: view.bandwidth_hz, deadline_s: view.deadline_s, gamma: view.gamma };
      const before = this.state.source.run === id ? this.state : null;  // the next round of the run that is shown
      this.state = withDevices(this.state, devicesOf(view), { label: id, run: id, index }, sliders);
      if (before) Object.assign(this.state, { policies: before.policies, selected: before.selected });
      const known = !before && this.context.about.policies.some((one) => one.name === view.policy && one.alone);
      if (known) this.state.policies[0] = { policy: view.policy, options: {} };
    } catch (error) {
      if (mine !== this.turn) return;
      this.stop();
      this.tell(`Round ${index} of ${id} cannot be shown: ${error.message}`);
      if (this.views.length > 0) return;
    } finally {
      if (mine === this.turn) this.reading = false;
    }
    this.refresh();
  }

  async save(kind) {
    const { root, state, views } = this;
    if (views.length === 0) return;
    if (kind === "csv") saveSchedule(views);
    else if (kind === "devices") saveDevices(views[0]);
    else if (kind === "json") saveJson(state, views);
    else if (kind === "svg") saveSvg(root, views);
    else await savePng(root, views);
  }

  async link() {
    history.replaceState(null, "", `#/cell?view=${await packed(this.state)}`);
    try {
      await navigator.clipboard.writeText(location.href);
      this.context.announce("The link is copied.");
    } catch {
      this.context.announce("The link is in the address of this page.");
    }
  }

  dropped(event) {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    this.file(event.dataTransfer.files[0]);
  }
}

function mark(kind) {
  return el("span", { class: `mark ${kind}`, "aria-hidden": "true" });
}
