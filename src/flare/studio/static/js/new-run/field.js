// One field of the form: its key, a control that suits it, its comment, and beside it what is wrong.

import { el, uid } from "../dom.js";

/** `field(setting, {value, onChange(text), names})` gives {node, set(text), error(message), setting}. A `value` of null is
 *  the default. `names` are what can be chosen by name: [{name, summary}]; `free` lets any other be typed. */
export function field(setting, { value, onChange, names = null, free = false }) {
  const id = uid("field"), help = `${id}-help`, wrong = `${id}-wrong`;
  const control = controlOf(setting, id, `${help} ${wrong}`, names, free);
  const back = el("button", { type: "button", class: "quiet back", title: `Back to ${setting.default}`, "aria-label": `Back to ${setting.default}`, hidden: true,
    onclick: () => { set(null); onChange(null); control.node.focus(); } }, "↺");
  const summary = el("p", { class: "field-summary" });
  const error = el("p", { class: "field-wrong error", id: wrong });
  const node = el("div", { class: "field" },
    el("div", { class: "field-head" }, el("label", { for: id }, setting.key), back),
    control.node, error, summary,
    el("p", { class: "field-help soft", id: help }, helpOf(setting)));
  if (control.list) node.append(control.list);
  control.node.addEventListener(control.event, () => {
    const text = control.read();
    const now = text === setting.default || text === "" ? null : text;
    mark(now);
    onChange(now);
  });
  if (control.event === "input" && setting.kind !== "switch") control.node.addEventListener("blur", () => control.read() === "" && set(null));

  function mark(now) {
    back.hidden = now === null;
    node.classList.toggle("changed", now !== null);
    const chosen = names?.find((each) => each.name === (now ?? setting.default));
    summary.textContent = chosen?.summary ?? "";
    summary.hidden = !chosen?.summary;
  }

  function set(text) {
    control.write(text ?? setting.default);
    mark(text);
  }

  set(value);
  return {
    node,
    setting,
    set,
    error(message) {
      error.textContent = message ?? "";
      node.classList.toggle("wrong", Boolean(message));
      if (message) control.node.setAttribute("aria-invalid", "true");
      else control.node.removeAttribute("aria-invalid");
    },
    focus: () => control.node.focus(),
    /** Whether the setting means something as the others are; `because` says when. */
    applies(does, because) {
      node.classList.toggle("idle", !does);
      node.querySelector(".field-help").dataset.because = does ? "" : because;
    },
  };
}

function controlOf(setting, id, described, names, free) {
  const common = { id, "aria-describedby": described };
  if (setting.kind === "switch") {
    const node = el("input", { type: "checkbox", role: "switch", ...common });
    return { node, event: "input", read: () => String(node.checked), write: (text) => { node.checked = text === "true"; } };
  }
  const choices = names && !free ? names.map((each) => each.name) : setting.choices;
  if (choices.length) {
    const node = el("select", common, choices.map((text) => el("option", { value: text }, text)));
    const write = (text) => {
      if (![...node.options].some((option) => option.value === text)) node.append(el("option", { value: text }, text));
      node.value = text;
    };
    return { node, event: "input", read: () => node.value, write };
  }
  const known = names ? names.map((each) => each.name) : setting.also;
  const list = known.length ? el("datalist", { id: `${id}-list` }, known.map((text) => el("option", { value: text }))) : null;
  const node = el("input", { type: "text", spellcheck: "false", autocomplete: "off", inputmode: setting.kind === "whole" ? "numeric" : null,
    placeholder: setting.default, list: list ? list.id : null, ...common });
  return { node, list, event: "input", read: () => node.value.trim(), write: (text) => { node.value = text === '""' ? "" : text; } };
}

/** The comment of a setting, and what it may be. */
function helpOf(setting) {
  const limits = setting.kind === "whole" || setting.kind === "number" ? setting.must_be : "";
  const example = setting.example ? ` With a unit, too: ${setting.example}.` : "";
  const doc = setting.doc ? `${setting.doc[0].toUpperCase()}${setting.doc.slice(1)}.` : "";
  return [doc, limits ? el("span", { class: "limits" }, ` ${limits[0].toUpperCase()}${limits.slice(1)}.${example}`) : example];
}

/** Put a text into the clipboard, or at least select it. */
export async function copy(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return false;
  }
}

