// What is shown, and what can be brought in and taken home.

import { el, uid } from "../dom.js";

/** `act`: file(File), run(id, index), save(kind), link(), reset(). Returns {node, show(state)}. */
export function bar(act, runs) {
  const what = el("span", { class: "what" });
  const input = el("input", { type: "file", accept: ".csv,.toml,.json,text/csv,application/json", hidden: true,
    onchange: () => { if (input.files[0]) act.file(input.files[0]); input.value = ""; } });
  const items = [["csv", "Schedule, CSV"], ["devices", "Devices, CSV"], ["json", "All of it, JSON"], ["svg", "Picture, SVG"], ["png", "Picture, PNG"]];
  const menu = el("details", { class: "menu" }, el("summary", { class: "button" }, "Download"),
    el("div", { class: "items" }, items.map(([kind, text]) => el("button", { type: "button", class: "quiet", onclick: () => { menu.open = false; act.save(kind); } }, text))));
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { menu.open = false; menu.firstElementChild.focus(); }
  });
  menu.addEventListener("focusout", (event) => { if (!menu.contains(event.relatedTarget) && event.relatedTarget) menu.open = false; });
  const choose = runDialog(act, runs);
  const node = el("div", { class: "cell-bar" }, el("h1", {}, "Cell"), what, el("span", { class: "space" }),
    el("button", { type: "button", class: "quiet", onclick: () => act.reset() }, "Start anew"),
    el("button", { type: "button", onclick: () => input.click() }, "Load a file"), input,
    el("button", { type: "button", onclick: () => choose.open() }, "Load a run's round"),
    menu, el("button", { type: "button", onclick: () => act.link() }, "Copy link"), choose.node);
  return { node, show(state) {
    const many = Object.keys(state.changes).length;
    what.textContent = `${state.source.label}, round ${state.round}${many ? `, ${many} changed` : ""}`;
  } };
}

function runDialog(act, runs) {
  const runId = uid("run"), indexId = uid("index");
  const list = el("select", { id: runId }), index = el("input", { type: "number", id: indexId, min: 0, value: 0 });
  const note = el("p", { class: "soft" });
  const go = el("button", { type: "button", class: "primary", onclick: () => { node.close(); act.run(list.value, Number(index.value) || 0); } }, "Show it");
  const node = el("dialog", { "aria-label": "Load a run's round" }, el("h2", {}, "A round of a run"),
    el("p", { class: "choice" }, el("label", { for: runId }, "Run"), list), el("p", { class: "choice" }, el("label", { for: indexId }, "Round"), index), note,
    el("p", { class: "line" }, go, el("button", { type: "button", onclick: () => node.close() }, "Cancel")));
  return { node, async open() {
    node.showModal();
    const found = await runs().catch(() => []);
    list.replaceChildren(...found.map((one) => el("option", { value: one.id }, one.id)));
    go.disabled = found.length === 0;
    note.textContent = found.length ? "" : "There are no runs in the studio's folder yet.";
  } };
}
