// Pairs of method and policy that are compared, each with settings of its own where it has any: as behind --entry.

import { clear, el } from "../dom.js";

/** "flare:greedy,learning.local_lr=0.1" as [method, policy, own settings]. */
function parted(entry) {
  return /^([^:]*):?([^,]*),?(.*)$/s.exec(entry).slice(1);
}

function joined([method, policy, own]) {
  return `${method}:${policy}${own ? `,${own}` : ""}`;
}

function select(names, value, label, onchange) {
  const all = names.includes(value) ? names : [...names, value];
  return el("select", { "aria-label": label, onchange }, all.map((name) => el("option", { value: name, selected: name === value }, name)));
}

/** `pairs(entries, {methods, policies, another(), onChange()})` gives {node, error(message)}: a field that changes the
 *  list `entries`; `another` is what a new one begins as. */
export function pairs(entries, { methods, policies, another, onChange }) {
  const rows = el("div", { class: "pairs" });
  const wrong = el("p", { class: "error field-wrong", id: "entries-wrong" });
  const add = el("button", { type: "button", onclick: () => {
    entries.push(another());
    draw();
    onChange();
    rows.lastElementChild.querySelector("select").focus();
  } }, "Add a pair to compare");

  function put(place, at, text) {
    const parts = parted(entries[place]);
    parts[at] = text.trim();
    entries[place] = joined(parts);
    onChange();
  }

  function remove(place) {
    entries.splice(place, 1);
    draw();
    onChange();
  }

  function draw() {
    clear(rows, ...entries.map((entry, place) => {
      const [method, policy, own] = parted(entry), number = place + 1;
      return el("div", { class: "pair" },
        select(methods, method, `Method of pair ${number}`, (event) => put(place, 0, event.target.value)), ":",
        select(policies, policy, `Policy of pair ${number}`, (event) => put(place, 1, event.target.value)),
        el("input", { type: "text", value: own, spellcheck: "false", autocomplete: "off", "aria-label": `Own settings of pair ${number}`,
          placeholder: "its own: learning.local_lr=0.1", "aria-describedby": wrong.id, oninput: (event) => put(place, 2, event.target.value) }),
        el("button", { type: "button", class: "quiet", "aria-label": `Remove pair ${number}`, onclick: () => remove(place) }, "×"));
    }));
  }

  draw();
  return {
    node: el("div", { class: "field several" }, el("div", { class: "field-head" }, el("span", { class: "label" }, "method : policy")),
      rows, add, wrong, el("p", { class: "field-help soft" }, "Without a pair, those of the settings below are run.")),
    error(message) {
      wrong.textContent = message ?? "";
    },
  };
}
