// The right side: for each policy the times of its senders, the division of the band, and how good that is.

import { clear, el } from "../dom.js";
import { human, num } from "../format.js";
import { drawBand } from "./band.js";
import { drawGantt, endOf } from "./gantt.js";
import { rowsOf } from "./order.js";

/** Returns {node, show(views, state)}. `onSelect(index)`. */
export function results(onSelect) {
  const node = el("div", { class: "results" });
  let parts = [];

  function show(views, state) {
    if (parts.length !== views.length) {
      parts = views.map(() => newPart());
      clear(node, ...parts.map((one) => one.node));
      node.classList.toggle("two", views.length > 1);
    }
    const rows = views.length > 1 ? rowsOf(views) : undefined;
    const end_s = Math.max(...views.map(endOf));
    views.forEach((view, at) => showPart(parts[at], view, { rows, end_s, selected: state.selected, onSelect }));
  }
  return { node, show };
}

function newPart() {
  const times = el("div", { class: "drawing times scroll", tabindex: "0", role: "group", "aria-label": "Time of each sender" });
  const band = el("div", { class: "drawing" });
  const title = el("span", {}), summary = el("p", { class: "summary" }), note = el("span", { class: "soft small" });
  const node = el("section", { class: "panel result", "aria-label": "Schedule" },
    el("h2", {}, title, note), summary, times, el("h3", { class: "soft" }, "Division of the band"), band);
  return { node, times, band, title, summary, note };
}

function showPart(part, view, options) {
  part.title.textContent = options.rows ? view.policy : `${view.policy}: time of each sender`;
  clear(part.note, el("span", { class: "dash", "aria-hidden": "true" }), `deadline ${human(view.deadline_s, "s")}`);
  clear(part.summary, ...summaryOf(view));
  if (view.num_selected === 0 && !(options.rows?.length)) clear(part.times, nobody(view));
  else drawGantt(part.times, view, options);
  drawBand(part.band, view, options);
}

function nobody(view) {
  const able = view.devices.some((one) => /could send alone|does not fit/.test(one.reason ?? ""));
  const why = able ? "the policy chose nobody, though some could" : "no device can meet the deadline, not even with the whole band";
  return el("p", { class: "nobody" }, `Nobody sends: ${why}. A later deadline, a wider band or a smaller payload would help.`);
}

/** Who sends, how good it is, and when the round ends: each a short piece. */
export function summaryOf(view) {
  const ends = view.latency_s === null ? "nobody sends" : `ends ${human(view.latency_s, "s")} of ${human(view.deadline_s, "s")}`;
  return [
    fact(`${view.num_selected} of ${view.devices.length}`, "send"),
    fact(num(view.objective, 4), "objective"),
    el("span", { class: `proof ${view.proven ? "proven" : ""}` }, proofOf(view)),
    ...(view.utility === null || view.utility === undefined ? [] : [el("span", { class: "proof" }, utilityOf(view))]),
    el("span", { class: "ends" }, ends),
  ];
}

export function proofOf(view) {
  if (view.num_selected === 0) return view.status;
  if (view.proven) return "proven optimal, gap 0";
  if (view.gap === null) return "no bound";
  if (view.gap < 1e-9) return "gap 0: reaches the proven bound";
  return `gap ${num(100 * Math.max(0, view.gap), 2)} % to the proven bound ${num(view.lower_bound, 4)}`;
}

/** The sum that a policy by utility makes as great as it can, and how sure that is. */
function utilityOf({ utility, utility_bound: bound }) {
  const proof = bound === utility ? "proven to be the greatest that fits" : `at most ${num(100 * Math.max(0, bound / utility - 1), 2)} % under the greatest that fits`;
  return `utility ${num(utility, 6)}: ${proof}`;
}

function fact(value, what) {
  return el("span", {}, el("strong", { class: "number" }, value), ` ${what}`);
}
