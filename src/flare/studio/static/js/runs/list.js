// The list of runs, in groups by the folder that they lie in. One stop of the Tab key: arrows go from row to row, space
// ticks, Enter ticks this one alone, Ctrl-A all that are shown.

import { clear, el, svg, uid } from "../dom.js";
import { counted } from "../format.js";
import { ago, percent, STATES } from "./words.js";

const MAX_ROWS = 3000;
const SPARK = { width: 64, height: 20 };

/** `list(root, {onPick(set), needSparklines(ids)})` gives {show(lines), setPicked(set), setLooks(map), sparklines(map)}. */
export function list(root, { onPick, needSparklines }) {
  const search = el("input", { type: "search", placeholder: "Find: name, method, policy …", "aria-label": "Find runs",
    oninput: () => draw() });
  const only = el("select", { "aria-label": "Which runs", onchange: () => draw() },
    ["all", "running", "ended"].map((value) => el("option", { value }, { all: "All", running: "Going on", ended: "Ended" }[value])));
  const order = el("select", { "aria-label": "Order", onchange: () => draw() },
    Object.entries({ newest: "Newest first", name: "By name", best: "Best first" }).map(([value, text]) => el("option", { value }, text)));
  const summary = el("p", { class: "soft count", role: "status" });
  const rows = el("div", { class: "run-rows", role: "listbox", tabindex: "0", "aria-multiselectable": "true", "aria-label": "Runs" });
  const none = el("button", { type: "button", class: "quiet", hidden: true, onclick: () => pick(new Set()) }, "Untick all");
  clear(root, el("div", { class: "find" }, search, only, order), el("div", { class: "list-head" }, summary, none), rows);

  const state = { lines: new Map(), picked: new Set(), looks: new Map(), sparks: new Map(), closed: new Set(), shown: [], at: 0 };
  const seen = new IntersectionObserver((entries) => wanted(entries), { root: rows, rootMargin: "200px" });
  let asking = null;
  const asked = new Set();

  function wanted(entries) {
    for (const { isIntersecting, target } of entries) {
      const id = target.dataset.run;
      if (isIntersecting && id !== undefined && !state.sparks.has(id)) asked.add(id);
    }
    if (asked.size && asking === null) asking = setTimeout(() => {
      asking = null;
      const ids = [...asked].slice(0, 60);
      for (const id of ids) asked.delete(id);
      needSparklines(ids);
      if (asked.size) wanted([]);
    }, 60);
  }

  function pick(picked) {
    state.picked = picked;
    mark();
    onPick(picked);
  }

  function matching() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return [...state.lines.values()].filter((line) => {
      const text = `${line.id} ${line.method} ${line.policy} ${line.state} ${line.kind} seed${line.seed}`.toLowerCase();
      const going = line.state === "running";
      return words.every((word) => text.includes(word)) && (only.value === "all" || (only.value === "running") === going);
    });
  }

  function grouped(lines) {
    const groups = new Map();
    for (const line of lines) {
      if (!groups.has(line.group)) groups.set(line.group, { name: line.group, kind: line.group_kind, lines: [] });
      groups.get(line.group).lines.push(line);
    }
    const key = { newest: (line) => -line.changed, best: (line) => -(line.accuracy ?? -1), name: () => 0 }[order.value];
    const smallest = (group) => group.lines.reduce((least, line) => Math.min(least, key(line)), Infinity);
    const sorted = [...groups.values()];
    for (const group of sorted) {
      group.key = smallest(group);
      if (order.value === "best") group.lines.sort((a, b) => key(a) - key(b));
    }
    return sorted.sort((a, b) => a.key - b.key || (a.name < b.name ? -1 : 1));
  }

  function draw() {
    const lines = matching();
    const going = lines.filter((line) => line.state === "running").length;
    summary.textContent = `${counted(lines.length, "run")}${going ? `, ${going} going on` : ""}`;
    state.shown = [];
    seen.disconnect();
    const nodes = [];
    for (const group of grouped(lines)) {
      const closed = state.closed.has(group.name);
      const bare = group.name === "" || group.lines.length === 1;
      if (!bare) nodes.push(groupRow(group, closed));
      if (closed && !bare) continue;
      for (const line of group.lines) if (state.shown.length < MAX_ROWS) nodes.push(runRow(line, !bare));
    }
    if (state.shown.length >= MAX_ROWS) nodes.push(el("p", { class: "soft" }, "There are more: find them above."));
    if (!state.lines.size) nodes.push(empty());
    else if (!nodes.length) nodes.push(el("p", { class: "soft" }, "No run is like that."));
    clear(rows, ...nodes);
    state.at = Math.min(state.at, Math.max(0, state.shown.length - 1));
    mark();
  }

  function empty() {
    return el("div", { class: "empty" }, el("p", {}, "There are no runs in this folder yet."),
      el("p", {}, el("a", { href: "#/new" }, "Start one"), ", or put run folders here: they appear by themselves."));
  }

  function groupRow(group, closed) {
    const ids = group.lines.map((line) => line.id);
    const node = el("div", { class: "group-row", role: "option", id: uid("row"), onclick: (event) => {
      if (event.target.closest(".fold")) fold(group.name);
      else toggle(ids);
    } },
      el("span", { class: "box", "aria-hidden": "true" }),
      el("span", { class: "group-name", title: group.name }, group.name),
      el("span", { class: "chip" }, `${group.kind === "folder" ? "" : `${group.kind}, `}${group.lines.length}`),
      el("span", { class: "fold", "aria-hidden": "true" }, closed ? "▸" : "▾"));
    node.setAttribute("aria-label", `${group.name}, ${group.kind} of ${counted(ids.length, "run")}${closed ? ", folded" : ""}`);
    state.shown.push({ node, ids, fold: group.name });
    return node;
  }

  function fold(name) {
    if (!state.closed.delete(name)) state.closed.add(name);
    draw();
  }

  function runRow(line, inner) {
    const node = el("div", { class: `run-row${inner ? " inner" : ""}`, role: "option", id: uid("row"), "data-run": line.id,
      onclick: (event) => (event.altKey || event.ctrlKey ? pick(new Set([line.id])) : toggle([line.id])) });
    fillRow(node, line);
    state.shown.push({ node, ids: [line.id] });
    seen.observe(node);
    return node;
  }

  function fillRow(node, line) {
    const named = line.method ? `${line.method}:${line.policy}` : line.name;
    const detail = line.method ? `seed ${line.seed}${line.kind === "simulation" ? "" : `, ${line.kind}`}` : "";
    const states = STATES[line.state] ?? line.state;
    const bar = svg("svg", { class: `progress ${line.state}`, viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "whole", width: 100, height: 4 }), svg("rect", { class: "done", width: 100 * line.progress, height: 4 }));
    clear(node,
      el("span", { class: "box", "aria-hidden": "true" }),
      el("span", { class: "run-name", title: line.id }, line.name),
      el("span", { class: "accuracy number" }, percent(line.accuracy)),
      el("span", { class: "run-what soft" }, line.problem || `${named}, ${detail}`),
      sparkline(state.sparks.get(line.id)),
      el("span", { class: `state ${line.state}`, title: line.problem || states }, line.state),
      el("span", { class: "rounds soft number" }, `${line.rounds.toLocaleString("en")} / ${line.planned_rounds.toLocaleString("en")}`),
      el("span", { class: "soft when" }, ago(line.changed)), bar);
    node.title = line.problem;
    node.setAttribute("aria-label",
      `${line.name}, ${named}, ${detail}, ${states}, round ${line.rounds} of ${line.planned_rounds}, accuracy ${percent(line.accuracy)}`);
  }

  function toggle(ids) {
    const picked = new Set(state.picked);
    const all = ids.every((id) => picked.has(id));
    for (const id of ids) if (all) picked.delete(id);
    else picked.add(id);
    pick(picked);
  }

  /** Say of each row whether it is ticked, and in which colour its curve is. */
  function mark() {
    state.shown.forEach(({ node, ids }, place) => {
      const ticked = ids.filter((id) => state.picked.has(id)).length;
      node.setAttribute("aria-selected", String(ticked === ids.length));
      node.classList.toggle("some", ticked > 0 && ticked < ids.length);
      node.classList.toggle("at", place === state.at);
      const colour = ids.length === 1 ? state.looks.get(ids[0]) : null;
      node.style.setProperty("--mine", colour ?? "var(--blue)");
    });
    rows.setAttribute("aria-activedescendant", state.shown[state.at]?.node.id ?? "");
    none.hidden = state.picked.size === 0;
  }

  rows.addEventListener("keydown", (event) => {
    const last = state.shown.length - 1;
    const to = { ArrowDown: state.at + 1, ArrowUp: state.at - 1, Home: 0, End: last, PageDown: state.at + 12, PageUp: state.at - 12 }[event.key];
    const here = state.shown[state.at];
    if (to !== undefined) {
      state.at = Math.max(0, Math.min(last, to));
      mark();
      state.shown[state.at]?.node.scrollIntoView({ block: "nearest" });
    } else if (event.key === " " && here) toggle(here.ids);
    else if (event.key === "Enter" && here) pick(new Set(here.ids));
    else if ((event.key === "ArrowLeft" || event.key === "ArrowRight") && here?.fold !== undefined) fold(here.fold);
    else if (event.key === "a" && (event.ctrlKey || event.metaKey)) pick(new Set(matching().map((line) => line.id)));
    else return;
    event.preventDefault();
  });

  return {
    show(lines) {
      state.lines = lines;
      draw();
    },
    /** Some runs changed and none came or went: only their rows are touched. */
    touch(changed) {
      for (const line of changed) {
        const found = state.shown.find(({ ids, fold: name }) => name === undefined && ids[0] === line.id);
        if (found) fillRow(found.node, line);
      }
    },
    setPicked(picked) {
      state.picked = picked;
      mark();
    },
    /** Bring the first ticked run into sight. */
    reveal() {
      const place = state.shown.findIndex(({ ids, fold: name }) => name === undefined && state.picked.has(ids[0]));
      if (place < 0) return;
      state.at = place;
      mark();
      const { node } = state.shown[place];
      rows.scrollTop = Math.max(0, node.offsetTop - 48);
    },
    setLooks(looks) {
      state.looks = looks;
      mark();
    },
    sparklines(found) {
      for (const [id, values] of Object.entries(found)) {
        state.sparks.set(id, values);
        const old = state.shown.find(({ ids, fold: name }) => name === undefined && ids[0] === id)?.node.querySelector(".spark");
        old?.replaceWith(sparkline(values));
      }
    },
    forgetSparklines(ids) {
      for (const id of ids) state.sparks.delete(id);
    },
    stop() {
      seen.disconnect();
      clearTimeout(asking);
    },
  };
}

function sparkline(values) {
  const { width, height } = SPARK;
  const root = svg("svg", { class: "spark", width, height, "aria-hidden": "true" });
  if (!values || values.length < 2) return root;
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const at = values.map((value, place) => `${((width - 4) * place) / (values.length - 1) + 2},${height - 3 - ((height - 6) * (value - low)) / span}`);
  const [x, y] = at.at(-1).split(",");
  root.append(svg("polyline", { points: at.join(" ") }), svg("circle", { cx: x, cy: y, r: 2 }));
  return root;
}
