// The Runs screen: the list on the left; on the right the curves of what is ticked, the round under the cursor, and the
// groups compared. What goes on grows by itself, and can be paused.

import { clear, el, svg } from "../dom.js";
import { counted } from "../format.js";
import { chart } from "./chart.js";
import { drawComparison, drawDevices } from "./compare.js";
import { list } from "./list.js";
import { keeper, look, sample } from "./looks.js";
import { roundPanel } from "./round.js";
import { runActions } from "./actions.js";
import { percent } from "./words.js";

const REFRESH_MS = 900;
const MAX_PICKED = 200;
const MAX_KEPT_IN_ADDRESS = 60;
const AXES = { rounds: "Rounds", time: "Time", energy: "Energy", bits: "Bits" };
const FIRST_METRICS = ["accuracy", "train_loss", "test_loss", "num_sent", "latency_s", "energy_j", "total_energy_j", "gap", "num_faults"];

export function mount(root, context) {
  const screen = new RunsScreen(root, context);
  screen.begin();
  return () => screen.stop();
}

class RunsScreen {
  constructor(root, context) {
    Object.assign(this, { root, context, api: context.api });
    const asked = context.parameters ?? new URLSearchParams();
    this.lines = new Map();
    this.awaited = new Set(asked.getAll("run"));  // runs or folders of runs that may still have to appear
    this.picked = new Set();
    this.metric = asked.get("metric") ?? "accuracy";
    this.x = asked.get("x") in AXES ? asked.get("x") : "rounds";
    this.together = asked.get("each") === null;
    this.zoom = { begin: null, end: null };
    this.paused = false;
    this.connection = "open";
    this.looksOf = keeper();
    this.looks = new Map();
    this.told = { curves: null, compared: null };
    this.timer = null;
    this.turn = 0;
    this.stopped = false;
    this.build();
  }

  build() {
    const panel = (name, label) => el("section", { class: `panel ${name}`, "aria-label": label });
    this.side = panel("runs-side", "List of runs");
    this.curves = panel("runs-curves", "Curves");
    this.roundRoot = panel("runs-round", "Round");
    this.compareRoot = panel("runs-compare", "Comparison");
    this.devicesRoot = panel("runs-devices", "Devices");
    this.actionsRoot = el("div", { class: "run-actions" });
    this.column = el("div", { class: "runs-column" }, this.curves, this.actionsRoot, this.roundRoot, this.compareRoot, this.devicesRoot);
    clear(this.root, this.side, this.column);
    this.list = list(this.side, { onPick: (picked) => { this.awaited.clear(); this.setPicked(picked); }, needSparklines: (ids) => this.needSparklines(ids) });
    this.buildCurves();
    this.round = roundPanel(this.roundRoot, {
      api: this.api,
      announce: this.context.announce,
      onShown: (view) => this.chart.mark(view.outcome.places[this.x] ?? null),
      onRun: (run) => this.showRun(run),
    });
    this.actions = runActions(this.actionsRoot, this.context);
  }

  buildCurves() {
    this.metrics = el("select", { id: "metric", onchange: () => this.choose({ metric: this.metrics.value }) });
    this.axes = el("div", { class: "segments", role: "group", "aria-label": "Against" },
      Object.entries(AXES).map(([value, text]) => el("button", { type: "button", "data-x": value, "aria-pressed": String(value === this.x),
        onclick: () => this.choose({ x: value }) }, text)));
    this.seeds = el("button", { type: "button", "aria-pressed": String(this.together), onclick: () => this.choose({ together: !this.together }) }, "Seeds together");
    this.live = el("button", { type: "button", class: "live", "aria-pressed": "true", onclick: () => this.pause(!this.paused) }, "Live");
    this.out = el("button", { type: "button", class: "away", onclick: () => this.zoomTo(null, null) }, "Zoom out");
    this.scroller = el("input", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "Scroll along the run", class: "scroller away",
      oninput: () => this.scroll(this.scroller.valueAsNumber / 1000) });
    this.state = el("p", { class: "soft curve-state", role: "status" });
    this.legend = el("ul", { class: "curve-legend" });
    const holder = el("div", {});
    this.problems = el("div", { class: "problems" });
    this.refused = el("p", { class: "error", role: "alert", hidden: true });
    clear(this.curves, el("div", { class: "curves-bar" },
      el("label", { for: "metric", class: "unseen" }, "Quantity"), this.metrics, el("span", { class: "soft" }, "against"), this.axes, this.seeds, this.out, el("span", { class: "space" }), this.live),
    this.refused, holder, this.scroller, this.legend, this.state, this.problems);
    this.chart = chart(holder, {
      onHover: (x, number) => this.hover(x, number),
      onPick: (x, number) => { this.hover(x, number); this.round.hold(); },
      onZoom: (begin, end) => this.zoomTo(begin, end),
    });
  }

  async begin() {
    try {
      const told = await this.api.get("/api/runs");
      if (this.stopped) return;
      this.fillMetrics(told.quantities);
      this.take(told.runs);
      this.list.sparklines(Object.fromEntries(told.runs.filter((line) => line.sparkline).map((line) => [line.id, line.sparkline])));
      if (told.is_cut) this.context.announce("There are more folders than are looked into.");
      if (!this.awaited.size) this.pickFirst();
      else this.pickAwaited();
      this.setPicked(this.picked);
      this.list.reveal();
    } catch (error) {
      if (!this.stopped) this.state.textContent = error.message;
      return;
    }
    this.endEvents = this.api.events("/api/events", (news) => this.news(news), (state, why) => this.connected(state, why));
  }

  fillMetrics(quantities) {
    const first = FIRST_METRICS.filter((name) => name in quantities);
    const rest = Object.keys(quantities).filter((name) => !first.includes(name));
    const option = (name) => el("option", { value: name }, quantities[name]);
    clear(this.metrics, ...first.map(option), el("optgroup", { label: "More" }, rest.map(option)));
    if (!(this.metric in quantities)) this.metric = "accuracy";
    this.metrics.value = this.metric;
  }

  /** Without a wish: what was worked on last, with its whole group where that is small. */
  pickFirst() {
    const newest = [...this.lines.values()].filter((line) => line.rounds > 0).sort((a, b) => b.changed - a.changed)[0];
    if (!newest) return;
    const group = [...this.lines.values()].filter((line) => line.group === newest.group && line.group !== "");
    this.picked = new Set(group.length && group.length <= 24 ? group.map((line) => line.id) : [newest.id]);
  }

  /** Tick the runs that the address names, as they appear; of a folder, all in it. Whether there were any. */
  pickAwaited() {
    const before = this.picked.size;
    for (const name of [...this.awaited]) {
      const found = [...this.lines.keys()].filter((id) => id === name || id.startsWith(`${name}/`));
      for (const id of found) this.picked.add(id);
      if (found.length) this.awaited.delete(name);
    }
    return this.picked.size > before;
  }

  take(lines) {
    this.lines = new Map(lines.map((line) => [line.id, line]));
    this.list.show(this.lines);
  }

  /** "open", "lost": it is tried again, or "refused", with the reason. */
  connected(state, why = "") {
    this.connection = state;
    this.live.classList.toggle("lost", state !== "open");
    this.refused.textContent = why && `Runs are not shown as they grow: ${why}`;
    this.refused.hidden = !why;
    this.nameLive();
  }

  nameLive() {
    const states = { open: "Live", lost: "No connection", refused: "Not live" };
    this.live.textContent = this.paused ? "Paused" : states[this.connection];
  }

  pause(paused) {
    this.paused = paused;
    this.live.setAttribute("aria-pressed", String(!paused));
    this.nameLive();
    if (paused) return;
    this.list.show(this.lines);
    this.refreshSoon(0);
    this.showGrown();
  }

  /** What the studio tells by itself. */
  news({ whole, changed, gone }) {
    const before = new Map(this.lines);
    if (whole) this.lines = new Map();
    for (const id of gone) this.lines.delete(id);
    for (const line of changed) this.lines.set(line.id, line);
    const differ = changed.filter((line) => JSON.stringify(before.get(line.id)) !== JSON.stringify({ ...line, sparkline: before.get(line.id)?.sparkline }));
    if (this.paused) return;
    const cameOrWent = gone.length > 0 || this.lines.size !== before.size || changed.some((line) => before.get(line.id)?.state !== line.state);
    if (cameOrWent) this.list.show(this.lines);
    else this.list.touch(differ);
    const grown = differ.filter((line) => before.get(line.id)?.rounds !== line.rounds).map((line) => line.id);
    this.list.forgetSparklines(grown);
    if (grown.length) this.needSparklines(grown.slice(0, 60));
    if (this.awaited.size ? this.pickAwaited() : !before.size && this.lines.size) {
      if (!this.picked.size) this.pickFirst();
      this.setPicked(this.picked);
    }
    if (differ.some((line) => this.picked.has(line.id))) this.refreshSoon(REFRESH_MS);
    this.showGrown();
  }

  /** The run whose round is shown, as it is now. */
  showGrown() {
    const mine = this.lines.get(this.round.run);
    if (!mine) return;
    this.actions.show(mine);
    if (mine.rounds && mine.rounds !== this.round.rounds) this.round.grew(mine.rounds);
  }

  async needSparklines(ids) {
    try {
      const { sparklines } = await this.api.post("/api/runs/sparklines", { runs: ids });
      if (!this.stopped) this.list.sparklines(sparklines);
    } catch {
      // they are an ornament: without them the list says the same
    }
  }

  setPicked(picked) {
    this.picked = picked;
    this.list.setPicked(picked);
    this.zoom = { begin: null, end: null };
    this.remember();
    const runs = this.pickedLines();
    const focus = runs.some((line) => line.id === this.round.run) ? this.round.run : runs[0]?.id ?? null;
    this.showRun(focus, runs);
    this.refreshSoon(0);
  }

  pickedLines() {
    return [...this.picked].map((id) => this.lines.get(id)).filter(Boolean).slice(0, MAX_PICKED);
  }

  showRun(run, runs = this.pickedLines()) {
    this.round.setRuns(runs, run);
    this.actions.show(this.lines.get(run) ?? null);
  }

  choose(wish) {
    if ("x" in wish && wish.x !== this.x) this.zoom = { begin: null, end: null };
    Object.assign(this, wish);
    for (const button of this.axes.children) button.setAttribute("aria-pressed", String(button.dataset.x === this.x));
    this.seeds.setAttribute("aria-pressed", String(this.together));
    this.chart.mark(null);
    this.remember();
    this.refreshSoon(0);
    if (this.told.compared) this.drawCompared();
  }

  /** The address says what is shown, so that it can be kept or sent. */
  remember() {
    const wish = new URLSearchParams();
    for (const id of [...this.awaited, ...this.picked].slice(0, MAX_KEPT_IN_ADDRESS)) wish.append("run", id);
    if (this.metric !== "accuracy") wish.set("metric", this.metric);
    if (this.x !== "rounds") wish.set("x", this.x);
    if (!this.together) wish.set("each", "");
    history.replaceState(null, "", `#/runs?${wish}`);
  }

  zoomTo(begin, end) {
    this.zoom = { begin, end };
    this.refreshSoon(0);
  }

  scroll(share) {
    const { begin, end } = this.zoom;
    if (begin === null || !this.whole) return;
    const wide = end - begin, [low, high] = this.whole;
    const from = low + share * Math.max(0, high - low - wide);
    this.zoom = { begin: from, end: from + wide };
    this.refreshSoon(0);
  }

  refreshSoon(after) {
    if (this.timer !== null && after > 0) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.timer = null; this.refresh(); }, after);
  }

  async refresh() {
    const mine = ++this.turn, runs = this.pickedLines().map((line) => line.id);
    const some = runs.length > 0;
    this.compareRoot.hidden = this.devicesRoot.hidden = !some;
    if (!some) {
      this.chart.clear();
      clear(this.legend);
      clear(this.problems);
      this.state.textContent = this.awaited.size ? `${[...this.awaited].join(", ")} has not begun yet; it appears here when it does.`
        : this.lines.size ? "Tick runs in the list to see their curves." : "";
      return;
    }
    const { metric, x, together } = this, points = Math.max(200, Math.min(1600, this.curves.clientWidth));
    try {
      const told = await this.api.post("/api/runs/curves", { runs, metric, x, points, together, ...this.zoom });
      if (mine !== this.turn || this.stopped) return;
      this.takeCurves(told);
      if (told.share_read < 1) {
        this.refreshSoon(60);
        return;
      }
      const compared = await this.api.post("/api/runs/compare", { runs });
      if (mine !== this.turn || this.stopped) return;
      this.told.compared = compared;
      this.drawCompared();
    } catch (error) {
      if (mine === this.turn && !this.stopped) this.state.textContent = error.message;
    }
  }

  takeCurves(told) {
    const drawn = told.curves.filter((curve) => curve.x.length);
    this.told.curves = { ...told, curves: drawn };
    this.looks = this.looksOf(told.curves.map((curve) => curve.label));
    if (this.zoom.begin === null && drawn.length) {
      this.whole = [Math.min(...drawn.map((curve) => curve.x[0])), Math.max(...drawn.map((curve) => curve.x.at(-1)))];
    }
    this.chart.show({ metric: told.metric, x: this.x, label: told.label, x_label: told.x_label, curves: drawn, looks: this.looks });
    this.drawZoom();
    this.drawLegend(told.curves);
    const reading = told.share_read < 1 ? `Reading: ${percent(told.share_read, 0)}. ` : "";
    const nothing = drawn.length ? "" : `Nothing of this was recorded${told.share_read < 1 ? " yet" : ""}.`;
    const more = this.picked.size > MAX_PICKED ? ` The first ${MAX_PICKED} of ${this.picked.size} ticked runs are drawn.` : "";
    const bands = this.together && drawn.some((curve) => curve.high.some((value) => value !== null)) ? "Band: 95 % interval over seeds. " : "";
    this.state.textContent = `${reading}${nothing}${bands}${drawn.length ? "Drag over the curves to zoom; point at a round to see it below." : ""}${more}`;
    clear(this.problems, ...Object.entries(told.problems).map(([run, problem]) => el("p", { class: "error" }, `${run}: ${problem}`)));
  }

  drawZoom() {
    const zoomed = this.zoom.begin !== null && this.whole !== undefined;
    for (const one of [this.out, this.scroller]) one.classList.toggle("away", !zoomed);  // its place stays: nothing moves
    if (!zoomed) return;
    const { begin, end } = this.zoom, [low, high] = this.whole, room = high - low - (end - begin);
    if (document.activeElement !== this.scroller) this.scroller.value = room > 0 ? (1000 * (begin - low)) / room : 0;
  }

  drawLegend(curves) {
    const colours = new Map();
    clear(this.legend, ...curves.map((curve) => {
      const mine = look(this.looks.get(curve.label));
      for (const run of curve.runs) colours.set(run, mine.colour);
      const seeds = this.together ? `, ${counted(curve.seeds.length, "seed")}` : "";
      return el("li", {}, sample(svg, mine), el("span", {}, curve.full_name), el("span", { class: "soft" }, seeds));
    }));
    this.list.setLooks(colours);
  }

  drawCompared() {
    const looks = this.together ? this.looks : new Map(this.told.compared.groups.map((group, place) => [group.label, place]));
    drawComparison(this.compareRoot, this.told.compared, this.x, looks);
    drawDevices(this.devicesRoot, this.told.compared, looks);
  }

  /** Show the round under the cursor, of the run shown if it is of that curve, and of the curve's first otherwise. */
  hover(x, number) {
    const curve = this.told.curves?.curves[number];
    if (!curve) return;
    if (!curve.runs.includes(this.round.run)) this.showRun(curve.runs[0]);
    this.round.at(this.x, x);
  }

  stop() {
    this.stopped = true;
    this.endEvents?.();
    clearTimeout(this.timer);
    this.chart.stop();
    this.round.stop();
    this.list.stop();
  }
}
