// A slider with a field beside it in which the value can be typed with its unit.

import { el, uid } from "../dom.js";
import { human, num, quantity } from "../format.js";

const STEPS = 1000;

/** `low`, `high`: its ends; `unit`: "" for a bare number; `zero`: whether its left end means 0 (the scale is
 *  logarithmic, unless `linear`); `whole`: whole numbers only; `onInput(value)`. Returns {node, show(value), say(error)}. */
export function slider({ label, low, high, unit = "", zero = false, linear = false, whole = false, digits = 3, onInput }) {
  const id = uid("slider"), told = uid("error");
  const range = el("input", { type: "range", id, min: 0, max: STEPS, step: 1 });
  const field = el("input", { type: "text", class: "typed number", "aria-label": `${label}, typed`, spellcheck: "false",
    autocomplete: "off", "aria-describedby": told });
  const error = el("span", { class: "error field-error", id: told, role: "alert" });
  const text = (value) => (unit ? human(value, unit, digits) : num(value, digits));

  function valueAt(place) {
    if (zero && place === 0) return 0;
    const share = place / STEPS;
    const value = linear ? low + share * (high - low) : low * (high / low) ** share;
    return whole ? Math.round(value) : Number(value.toPrecision(3));
  }
  function placeOf(value) {
    if (value <= low) return 0;
    const share = linear ? (value - low) / (high - low) : Math.log(value / low) / Math.log(high / low);
    return Math.round(STEPS * Math.min(1, share));
  }
  function show(value) {
    const known = value !== null && value !== undefined;
    range.disabled = field.disabled = !known;
    if (!known) {
      field.value = "own";
      return;
    }
    if (document.activeElement !== range || valueAt(Number(range.value)) !== value) range.value = placeOf(value);
    range.setAttribute("aria-valuetext", text(value));
    if (document.activeElement !== field) field.value = text(value);
  }
  function say(message) {
    error.textContent = message ?? "";
    field.setAttribute("aria-invalid", message ? "true" : "false");
  }
  function typed() {
    const value = quantity(field.value, unit);
    const least = low < 0 ? low : zero ? 0 : Number.MIN_VALUE;
    if (value === null || !Number.isFinite(value) || value < least) {
      say(`write ${unit ? `a number with its unit, such as ${text((low + high) / 2)}` : "a number"}`);
      return;
    }
    say();
    onInput(whole ? Math.max(1, Math.round(value)) : value);
  }
  range.addEventListener("input", () => {
    say();
    const value = valueAt(Number(range.value));
    field.value = text(value);
    range.setAttribute("aria-valuetext", text(value));
    onInput(value);
  });
  field.addEventListener("change", typed);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") field.blur();
  });
  const node = el("div", { class: "slider" }, el("label", { for: id }, label), field, range, error);
  return { node, show, say };
}
