// The strip of controls below the cell: what the base station has, who is asked, which round is shown.

import { el, uid } from "../dom.js";
import { slider } from "./slider.js";

/** `act` has what the controls do: slide(name, value), policy(place, name), options(place, options), compare(on),
 *  round(index), play(), seed(number), devices(number), reset(). Returns {node, show(state, playing), say(error)}. */
export function controls(about, act) {
  const sliders = {
    bandwidth_hz: slider({ label: "Band", low: 1e6, high: 1e9, unit: "Hz", onInput: (value) => act.slide("bandwidth_hz", value) }),
    deadline_s: slider({ label: "Deadline", low: 0.02, high: 20, unit: "s", onInput: (value) => act.slide("deadline_s", value) }),
    payload_bits: slider({ label: "Payload", low: 1e4, high: 1e9, unit: "bit", onInput: (value) => act.slide("payload_bits", value) }),
    gamma: slider({ label: "Gamma", low: 0.1, high: 1000, zero: true, onInput: (value) => act.slide("gamma", value) }),
  };
  const fading = choice("Fading", [["none", "none"], ["rician", "Rician"], ["rayleigh", "Rayleigh"]], (value) => act.slide("fading", value));
  const first = policyChoice("Policy", about, 0, act), second = policyChoice("and", about, 1, act);
  const compare = el("button", { type: "button", "aria-pressed": "false", onclick: () => act.compare() }, "+ Compare");
  const rounds = roundControls(act), cell = cellControls(about, act);
  const node = el("section", { class: "panel controls", "aria-label": "Controls" },
    el("div", { class: "sliders" }, Object.values(sliders).map((one) => one.node), fading.node),
    el("div", { class: "line" }, first.node, second.node, compare, el("span", { class: "space" }), cell.node, rounds.node),
  );

  function show(state, playing) {
    for (const [name, one] of Object.entries(sliders)) one.show(state.sliders[name]);
    fading.show(state.sliders.fading);
    first.show(state.policies[0]);
    second.node.hidden = state.policies.length < 2;
    if (state.policies.length > 1) second.show(state.policies[1]);
    compare.setAttribute("aria-pressed", String(state.policies.length > 1));
    compare.textContent = state.policies.length > 1 ? "− One policy" : "+ Compare";
    rounds.show(state, playing);
    cell.show(state);
  }
  /** Say an error beside the control that it is of; whether there is one. */
  function say(error) {
    for (const one of Object.values(sliders)) one.say();
    first.say();
    second.say();
    const field = error?.field ?? "";
    const part = field.startsWith("policies[1]") ? second : field.startsWith("policies[0]") ? first : sliders[field];
    part?.say(error.message);
    return Boolean(part);
  }
  return { node, show, say };
}

function choice(label, options, onInput) {
  const id = uid("choice");
  const select = el("select", { id, onchange: () => onInput(select.value) }, options.map(([value, text]) => el("option", { value }, text)));
  return { node: el("div", { class: "choice" }, el("label", { for: id }, label), select), select, show: (value) => { select.value = value; } };
}

function policyChoice(label, about, place, act) {
  const known = about.policies.filter((one) => one.alone);
  const part = choice(label, known.map((one) => [one.name, one.name]), (value) => act.policy(place, value));
  const options = el("input", { type: "text", class: "options", "aria-label": `Options of ${place ? "the second" : "the"} policy`, spellcheck: "false",
    onchange: () => act.options(place, read(options.value)) });
  const told = uid("error"), error = el("span", { class: "error field-error", id: told, role: "alert" });
  options.setAttribute("aria-describedby", told);
  if (place) part.select.setAttribute("aria-label", "Second policy");
  part.node.append(options, error);
  return {
    node: part.node,
    show(asked) {
      const one = known.find((each) => each.name === asked.policy);
      part.show(asked.policy);
      part.select.title = one?.summary ?? "";
      const own = (one?.options ?? []).filter((each) => each.name !== "time_limit_s");  // the studio has its own
      options.hidden = own.length === 0;
      options.placeholder = own.map((each) => `${each.name}=${each.default}`).join(", ");
      options.title = own.map((each) => `${each.name}: ${each.doc}`).join("\n");
      if (document.activeElement !== options) options.value = written(asked.options);
    },
    say(message) {
      error.textContent = message ?? "";
    },
  };
}

/** Options from "num_selected=5, name=text". */
function read(text) {
  const options = {};
  for (const part of text.split(",")) {
    const [name, ...rest] = part.split("=");
    if (!name.trim()) continue;
    const value = rest.join("=").trim();
    try {
      options[name.trim()] = JSON.parse(value);
    } catch {
      options[name.trim()] = value;
    }
  }
  return options;
}

function written(options) {
  return Object.entries(options ?? {}).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

function roundControls(act) {
  const id = uid("round");
  const field = el("input", { type: "number", id, min: 0, step: 1, onchange: () => act.round(Math.max(0, Math.floor(Number(field.value)) || 0)) });
  const back = el("button", { type: "button", "aria-label": "Previous round", onclick: () => act.round(Number(field.value) - 1) }, "‹");
  const next = el("button", { type: "button", "aria-label": "Next round", onclick: () => act.round(Number(field.value) + 1) }, "›");
  const play = el("button", { type: "button", class: "play", title: "Play round after round", onclick: () => act.play() });
  return {
    node: el("div", { class: "choice rounds" }, el("label", { for: id }, "Round"), back, field, next, play),
    show(state, playing) {
      if (document.activeElement !== field) field.value = state.round;
      back.disabled = state.round === 0;
      play.textContent = playing ? "❚❚ Pause" : "▶ Play";
      play.setAttribute("aria-pressed", String(playing));
    },
  };
}

function cellControls(about, act) {
  const seedId = uid("seed"), manyId = uid("devices");
  const seed = el("input", { type: "number", id: seedId, min: 0, step: 1, onchange: () => act.seed(Math.max(0, Math.floor(Number(seed.value)) || 0)) });
  const most = about.limits.max_devices, told = uid("error"), error = el("span", { class: "error field-error", id: told, role: "alert" });
  const many = el("input", { type: "number", id: manyId, min: 1, max: most, step: 1, "aria-describedby": told, onchange: () => {
    const number = many.valueAsNumber, right = Number.isInteger(number) && number >= 1 && number <= most;
    error.textContent = right ? "" : `${many.value || "nothing"} is no number of devices: a whole number from 1 to ${most.toLocaleString("en")}`;
    if (right) act.devices(number);
  } });
  return {
    node: el("div", { class: "choice" }, el("label", { for: manyId }, "Devices"), many, el("label", { for: seedId }, "Seed"), seed, error),
    show(state) {
      const drawn = state.source.kind === "cell";
      many.disabled = !drawn || Boolean(state.source.wireless.trace) || Boolean(state.source.wireless.tau_values);
      if (document.activeElement !== many && !error.textContent) many.value = drawn ? state.source.wireless.num_devices ?? 40 : state.source.devices.length;
      if (document.activeElement !== seed) seed.value = state.seed;
    },
  };
}
