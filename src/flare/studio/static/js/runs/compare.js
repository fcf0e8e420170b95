// Groups of runs compared: a table with paired differences drawn in it, who takes part, where the time of a round goes.

import { clear, el, svg, uid } from "../dom.js";
import { counted, human, num } from "../format.js";
import { look, sample } from "./looks.js";
import { duration, percent, points, withHalf } from "./words.js";

/** Draw into `root` what POST /api/runs/compare said; `by` is "rounds" or "time", `looks` a map from label to number. */
export function drawComparison(root, told, by, looks) {
  const ranking = told.rankings[by === "time" ? 1 : 0];
  const parts = told.groups.length ? [table(told, ranking, looks), ...remarks(ranking)] : [];
  clear(root, el("h2", {}, told.groups.length > 1 ? "Compared seed by seed" : "In numbers", el("span", { class: "soft small" }, ranking?.after ? `after ${after(ranking)}` : "")), ...parts);
}

function after({ by, after: place, unit }) {
  return unit === "rounds" ? counted(place, "round") : `${duration(place)} of ${by}`;
}

function table(told, ranking, looks) {
  const standings = new Map((ranking?.groups ?? []).map((each) => [each.name, each]));
  const order = ranking?.groups.length ? ranking.groups.map((each) => told.groups.find((group) => group.label === each.name)) : told.groups;
  const apart = [...standings.values()].filter((each) => each.difference !== null);
  const reach = Math.max(1e-9, ...apart.flatMap(({ difference, low, high }) => [difference, low ?? difference, high ?? difference].map(Math.abs)));
  const several = told.groups.length > 1;
  const head = [["Group", ""], ["Seeds"], ["Accuracy"], ...(several ? [["Difference to the best, points", ""], ["mean [95 %]"], ["Won"]] : []),
    ["Rounds"], ["Time"], ["Senders"], ["Energy"], ["Sent"], ["State", ""]];
  const rows = order.filter(Boolean).map((group) => {
    const standing = standings.get(group.label);
    return el("tr", {},
      el("th", { scope: "row" }, el("span", { class: "group-cell" }, sample(svg, look(looks.get(group.label) ?? 0)), el("span", {}, group.full_name))),
      cell(group.seeds.length), cell(standing ? withHalf({ mean: standing.test_accuracy, half: standing.half_width }) : withHalf(group.accuracy)),
      several && el("td", { class: "forest" }, standing && !standing.best ? interval(standing, reach) : ""),
      several && cell(standing?.best ? "best" : differenceWords(standing)), several && cell(won(standing)),
      cell(group.rounds.toLocaleString("en")), cell(duration(group.clock_s)), cell(num(group.num_senders)), cell(human(group.energy_j, "J")),
      cell(human(group.payload_bits, "bit")), el("td", {}, group.status));
  });
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison of groups" },
    el("table", {}, el("thead", {}, el("tr", {}, head.map(([text, kind = "number"]) => el("th", { class: kind || null, scope: "col" }, text)))),
      el("tbody", {}, rows)));
}

const cell = (text) => el("td", { class: "number" }, String(text));

function differenceWords(standing) {
  if (!standing || standing.difference === null) return "–";
  if (standing.low === null) return points(standing.difference);
  return `${points(standing.difference)} [${points(standing.low)}, ${points(standing.high)}]`;
}

function won(standing) {
  return !standing || standing.best || !standing.pairs ? "–" : `${standing.won} of ${standing.pairs}`;
}

/** A difference with its 95 % interval, on a scale that all rows share; 0 is in the middle. */
function interval({ difference, low, high }, reach) {
  const width = 150, height = 22, middle = width / 2;
  const x = (value) => middle + (value / reach) * (middle - 8);
  if (difference === null) return el("span", { class: "soft" }, "no pairs");
  const words = low === null ? `${points(difference)} points` : `${points(difference)} points, 95 % interval ${points(low)} to ${points(high)}`;
  return svg("svg", { class: "interval", width, height, role: "img", "aria-label": words },
    svg("line", { class: "zero", x1: middle, x2: middle, y1: 1, y2: height - 1 }),
    low === null ? null : svg("line", { class: "reach", x1: x(low), x2: x(high), y1: height / 2, y2: height / 2 }),
    svg("circle", { class: "mean", cx: x(difference), cy: height / 2, r: 4.5 }));
}

function remarks(ranking) {
  if (!ranking) return [];
  const said = [...ranking.remarks, ...ranking.groups.flatMap((group) => group.remarks)];
  const few = ranking.groups.some((group) => group.pairs !== null && group.pairs < 3);
  if (few) said.push("With fewer than 3 pairs there is no interval");
  if (!ranking.groups.length) said.push("There is no place that the tests of all ticked runs reach, so that they cannot be ranked");
  return said.map((text) => el("p", { class: "soft small" }, `${text}.`));
}

/** Participation, the parts of a round and faults of the groups. */
export function drawDevices(root, told, looks) {
  const groups = told.groups;
  const longest = Math.max(1e-12, ...groups.map((group) => group.split_s.reduce((sum, each) => sum + (each ?? 0), 0)));
  const faults = groups.filter((group) => group.faults.length);
  clear(root,
    el("h2", {}, "Who takes part, and where the time goes"),
    el("div", { class: "device-charts" },
      el("section", {}, el("h3", {}, "Share of the rounds in which each device sends"), groups.map((group) => participation(group, looks))),
      el("section", {}, el("h3", {}, "An average round"), splitLegend(told.split_parts, groups), groups.map((group) => split(group, told.split_parts, longest, looks)))),
    faults.length ? faultTable(faults) : "");
}

function groupName(group, looks) {
  return el("p", { class: "chart-name" }, sample(svg, look(looks.get(group.label) ?? 0)), el("span", {}, group.label));
}

function participation(group, looks) {
  const { participation: shares, num_devices: number } = group, width = 480, height = 46;
  const wide = width / shares.length, { colour } = look(looks.get(group.label) ?? 0);
  const bars = shares.map((share, place) => svg("rect", { x: place * wide, y: height - height * share, width: Math.max(0.6, wide - (wide > 4 ? 1.5 : 0)), height: height * share, fill: colour },
    svg("title", {}, `${number === shares.length ? `device ${place}` : `devices about ${Math.round((place * number) / shares.length)}`}: ${percent(share, 0)}`)));
  const least = Math.min(...shares), most = Math.max(...shares);
  return el("figure", {}, groupName(group, looks),
    svg("svg", { class: "bars", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${group.label}: each of ${number} devices sends in ${percent(least, 0)} to ${percent(most, 0)} of the rounds` },
    svg("rect", { class: "track", width, height }), bars),
    el("figcaption", { class: "soft small" }, `${number} devices; ${percent(least, 0)} to ${percent(most, 0)}`));
}

const KINDS = ["asking", "broadcast", "computing", "sending", "waiting", "nobody"];

function hatch(id) {
  return svg("defs", {}, svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, class: "computing" }), svg("rect", { width: 2, height: 6, class: "hatch" })));
}

function splitLegend(parts, groups) {
  const used = parts.map((_, place) => groups.some((group) => (group.split_s[place] ?? 0) > 1e-9));
  return el("p", { class: "split-legend soft small" }, parts.map((part, place) => used[place] && el("span", {}, swatch(KINDS[place]), part)));
}

function swatch(kind) {
  const id = uid("hatch");
  return svg("svg", { width: 16, height: 11, "aria-hidden": "true" }, kind === "computing" ? hatch(id) : null,
    svg("rect", { class: `split of-${kind}`, width: 16, height: 11, fill: kind === "computing" ? `url(#${id})` : null }));
}

function split(group, parts, longest, looks) {
  const width = 480, height = 20, id = uid("hatch"), total = group.split_s.reduce((sum, each) => sum + (each ?? 0), 0);
  let from = 0;
  const rects = group.split_s.map((seconds, place) => {
    const wide = ((seconds ?? 0) / longest) * width, kind = KINDS[place];
    const rect = svg("rect", { class: `split of-${kind}`, x: from, width: wide, height, fill: kind === "computing" ? `url(#${id})` : null },
      svg("title", {}, `${parts[place]}: ${human(seconds ?? 0, "s")}`));
    from += wide;
    return wide > 0.2 ? rect : null;
  });
  const words = parts.map((part, place) => [part, group.split_s[place] ?? 0]).filter(([, seconds]) => seconds > 1e-9).map(([part, seconds]) => `${part} ${human(seconds, "s")}`);
  return el("figure", {}, groupName(group, looks),
    svg("svg", { class: "bars thin", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${group.label}: ${words.join(", ")}` }, hatch(id), rects),
    el("figcaption", { class: "soft small" }, `${human(total, "s")}: ${words.join(", ")}`));
}

function faultTable(groups) {
  return el("section", {}, el("h3", {}, "Faults of nodes"),
    el("table", { class: "faults" }, el("tbody", {}, groups.flatMap((group) => group.faults.map((fault) =>
      el("tr", {}, el("td", {}, group.label), el("td", { class: "number" }, String(fault.count)), el("td", {}, fault.kind)))))));
}
