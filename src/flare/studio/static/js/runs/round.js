// One round of a run: its cell, the time of each sender and the band, with a slider that goes along the run. Moving
// along a curve above shows the round there; a click holds it.

import { drawBand } from "../cell/band.js";
import { drawGantt } from "../cell/gantt.js";
import { drawMap } from "../cell/map.js";
import { clear, el } from "../dom.js";
import { counted, human, num } from "../format.js";
import { duration, percent } from "./words.js";

const PLAY_MS = 350;

/** `roundPanel(root, {api, announce, onShown(view), onRun(id)})` gives {setRuns, show, at, grew, stop}. */
export function roundPanel(root, { api, announce, onShown, onRun }) {
  const state = { run: null, index: 0, view: null, rounds: 0, selected: null, playing: null, asking: null, next: null };
  const runs = el("select", { "aria-label": "Run whose round is shown", onchange: () => { state.index = 0; onRun(runs.value); } });
  const slider = el("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Round", oninput: () => hold(slider.valueAsNumber - 1) });
  const back = el("button", { type: "button", "aria-label": "Round before", onclick: () => hold(state.index - 1) }, "◂");
  const ahead = el("button", { type: "button", "aria-label": "Next round", onclick: () => hold(state.index + 1) }, "▸");
  const play = el("button", { type: "button", "aria-pressed": "false", onclick: () => playing(state.playing === null) }, "Play rounds");
  const open = el("a", { class: "button", title: "Move its devices, change the band, try other policies" }, "Open in Cell");
  const title = el("span", {}, "Round");
  const facts = el("p", { class: "round-facts" });
  const note = el("p", { class: "soft", role: "note" });
  const map = el("div", { class: "map-holder" }), gantt = el("div", { class: "drawing" }), band = el("div", { class: "drawing" });
  const picked = el("p", { class: "picked-device soft" });
  const drawing = el("div", { class: "round-drawing" },
    el("div", { class: "round-map" }, map, picked), el("div", { class: "round-times" }, el("h3", {}, "Time of each sender"), gantt, el("h3", {}, "Band"), band));
  clear(root, el("h2", {}, title, runs),
    el("div", { class: "round-bar" }, back, slider, ahead, play, open), facts, note, drawing);
  const sizes = new ResizeObserver(() => state.view && draw());
  sizes.observe(drawing);

  function hold(index) {
    playing(false);
    show(Math.max(0, Math.min(index, state.rounds - 1)));
  }

  function playing(on) {
    if (state.playing !== null) clearInterval(state.playing);
    state.playing = on ? setInterval(() => {
      if (state.asking) return;
      if (state.index + 1 >= state.rounds) playing(false);
      else show(state.index + 1);
    }, PLAY_MS) : null;
    play.setAttribute("aria-pressed", String(on));
    play.textContent = on ? "Pause" : "Play rounds";
  }

  /** Ask for a round; while an answer is under way only the last wish is kept. */
  async function ask(path) {
    if (state.asking) {
      state.next = path;
      return;
    }
    state.asking = path;
    try {
      const run = state.run, view = await api.get(path);
      if (run === state.run) take(view);
    } catch (error) {
      if (!state.next) {
        note.textContent = error.message;
        clear(facts);
      }
    } finally {
      state.asking = null;
      const next = state.next;
      state.next = null;
      if (next) ask(next);
    }
  }

  const base = () => `/api/runs/${state.run.split("/").map(encodeURIComponent).join("/")}`;

  function show(index) {
    if (state.run === null) return;
    state.index = index;
    ask(`${base()}/rounds/${index}`);
  }

  function take(view) {
    state.view = view;
    state.index = view.round;
    state.rounds = Math.max(state.rounds, view.outcome.rounds);
    slider.max = state.rounds;
    slider.value = view.round + 1;
    slider.setAttribute("aria-valuetext", `round ${view.round + 1} of ${state.rounds}`);
    draw();
    onShown(view);
  }

  function draw() {
    const { view } = state;
    title.textContent = `Round ${(view.round + 1).toLocaleString("en")} of ${state.rounds.toLocaleString("en")}`;
    back.disabled = view.round <= 0;
    ahead.disabled = view.round + 1 >= state.rounds;
    open.href = `#/cell?run=${encodeURIComponent(state.run)}&round=${view.round}`;
    const placed = view.devices.some((one) => one.x_m !== null);
    note.textContent = view.untold ? `Only what was recorded: ${view.untold}.` : "";
    note.hidden = !view.untold;
    drawing.classList.toggle("no-map", !placed);
    const options = { selected: state.selected, onSelect: (index) => { state.selected = state.selected === index ? null : index; draw(); } };
    if (placed) drawMap(map, view, options);
    else {
      delete map.flareMap;
      clear(map);
    }
    drawGantt(gantt, view, options);
    drawBand(band, view, options);
    clear(facts, ...factsOf(view));
    picked.textContent = deviceWords(view.devices[state.selected]);
  }

  return {
    /** The runs that can be shown: [{id, name}]; the one shown stays if it is among them. */
    setRuns(lines, run) {
      clear(runs, ...lines.map((line) => el("option", { value: line.id }, line.id)));
      root.hidden = !lines.length;
      if (run === state.run) {
        runs.value = run;
        return;
      }
      playing(false);
      const line = lines.find((each) => each.id === run);
      Object.assign(state, { run: line ? run : null, view: null, rounds: line?.rounds ?? 0, selected: null });
      if (!line) return;
      runs.value = run;
      if (line.rounds) show(Math.min(state.index, line.rounds - 1));
      else note.textContent = "It has no rounds yet.";
    },
    /** The round at a place of an axis. */
    at(x, value) {
      if (state.run !== null && state.playing === null) ask(`${base()}/at?x=${x}&value=${value}`);
    },
    hold() {
      if (state.view) announce(`Round ${state.view.round + 1}: ${facts.textContent}`);
    },
    /** The run has so many rounds now; who looks at the last one goes along. */
    grew(rounds) {
      const last = state.view && state.view.round + 1 === state.rounds;
      state.rounds = rounds;
      slider.max = rounds;
      if (!state.view || (last && state.playing === null)) show(rounds - 1);
      else draw();
    },
    get run() {
      return state.run;
    },
    get rounds() {
      return state.rounds;
    },
    stop() {
      playing(false);
      sizes.disconnect();
    },
  };
}

function factsOf(view) {
  const { outcome } = view;
  const sending = view.devices.filter((one) => one.sends).length;
  const lost = view.devices.filter((one) => one.lost).length;
  const facts = [
    [`${sending} of ${outcome.available}`, "send"],
    [num(view.objective, 4), "objective"],
    [view.gap === null ? "not known" : view.proven ? "0, proven" : percent(view.gap, 2), "gap"],
    [`${human(view.latency_s, "s")} of ${human(view.deadline_s, "s")}`, "ends after"],
    [human(outcome.energy_j, "J"), "energy"],
    [duration(outcome.clock_s), "clock"],
    [outcome.accuracy === null ? "not tested yet" : percent(outcome.accuracy), outcome.tested_after && outcome.tested_after !== view.round + 1 ? `accuracy after round ${outcome.tested_after}` : "accuracy"],
  ];
  if (outcome.train_loss !== null) facts.push([num(outcome.train_loss, 4), "training loss"]);
  const nodes = facts.map(([value, name]) => el("span", {}, el("b", { class: "number" }, value), ` ${name}`));
  if (lost) nodes.push(el("span", { class: "error" }, `${counted(lost, "update")} lost`));
  for (const fault of outcome.faults.slice(0, 5)) {
    nodes.push(el("span", { class: "error" }, `fault: ${Object.entries(fault).map(([name, value]) => `${name} ${value}`).join(", ")}`));
  }
  if (outcome.num_faults > 5) nodes.push(el("span", { class: "error" }, `and ${outcome.num_faults - 5} more faults`));
  return nodes;
}

function deviceWords(device) {
  if (!device) return "Click a device to read about it.";
  const parts = [`Device ${device.name}: ${num(device.tau, 4)} steps, computes ${human(device.compute_s, "s")}`];
  if (device.distance_m !== null) parts.push(`${human(device.distance_m, "m")} away`);
  if (device.sends) parts.push(`sends ${human(device.upload_s, "s")} on ${human(device.bandwidth_hz, "Hz")}`);
  if (device.lost) parts.push("its update was lost");
  if (!device.sends) parts.push(device.reason ?? "does not send");
  return `${parts.join(", ")}.`;
}
