// The page of the service: every route of /api/openapi.json with its fields, and a place to try it.

import * as api from "./api.js";
import { clear, el, uid } from "./dom.js";
import { themeButton } from "./theme.js";

const root = document.getElementById("screen");

function typeOf(schema) {
  if (schema.enum) return schema.enum.map((one) => `"${one}"`).join(" or ");
  if (schema.type === "array") return `list of ${schema.items.type === "object" ? "objects" : `${typeOf(schema.items)}s`}`;
  return schema.type ?? "any";
}

function rangeOf(schema) {
  const words = [];
  if (schema.exclusiveMinimum !== undefined) words.push(`> ${schema.exclusiveMinimum}`);
  if (schema.minimum !== undefined) words.push(`≥ ${schema.minimum}`);
  if (schema.maximum !== undefined && schema.maximum < 1e50) words.push(`≤ ${schema.maximum}`);
  return words.join(", ");
}

/** A table of the fields of an object; those of the objects in its lists follow. */
function fields(schema, prefix = "") {
  const rows = [], inner = [];
  for (const [name, one] of Object.entries(schema.properties ?? {})) {
    const needed = schema.required?.includes(name) ? "yes" : "";
    rows.push(el("tr", {}, el("td", {}, el("code", {}, prefix + name)), el("td", {}, typeOf(one)), el("td", {}, needed), el("td", {}, rangeOf(one)),
      el("td", {}, one.description ?? "")));
    if (one.type === "array" && one.items.type === "object") inner.push(...fields(one.items, `${prefix}${name}[].`));
  }
  return [...rows, ...inner];
}

function tryOut(path, example) {
  const id = uid("body");
  const body = el("textarea", { id, spellcheck: "false", value: JSON.stringify(example, null, 2) }), answer = el("pre", { tabindex: "0", "aria-live": "polite" }, "");
  const send = el("button", { type: "button", class: "primary", onclick: async () => {
    const start = performance.now();
    try {
      const value = await api.post(path, JSON.parse(body.value));
      answer.textContent = `${(performance.now() - start).toFixed(1)} ms\n${JSON.stringify(value, null, 2)}`;
    } catch (error) {
      answer.textContent = error.field !== undefined ? `${error.status}, field ${error.field || "–"}\n${error.message}` : `not JSON: ${error.message}`;
    }
  } }, "Send it");
  return el("div", { class: "two" }, el("div", {}, el("label", { for: id }, "Body"), body, el("p", {}, send)), el("div", {}, el("span", { class: "soft" }, "Answer"), answer));
}

function route(path, method, told) {
  const body = told.requestBody?.content?.["application/json"];
  return el("section", { class: "panel" },
    el("h2", {}, el("span", {}, el("span", { class: "verb" }, method.toUpperCase()), " ", el("code", {}, path))), el("p", {}, told.summary ?? ""),
    body ? tryOut(path, body.example) : null,
    body ? el("details", {}, el("summary", {}, "Fields"), el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Fields" },
      el("table", {}, el("thead", {}, el("tr", {}, ["field", "type", "needed", "range", "what"].map((one) => el("th", { scope: "col" }, one)))), el("tbody", {}, fields(body.schema))))) : null,
    el("details", {}, el("summary", {}, "Answers"), el("dl", {}, Object.entries(told.responses ?? {}).flatMap(([code, one]) => [el("dt", {}, code), el("dd", {}, one.description)]))));
}

async function show() {
  try {
    const told = await api.get("/api/openapi.json");
    const routes = Object.entries(told.paths).filter(([path]) => path.startsWith("/api/schedule") || path === "/api/about")
      .sort(([a], [b]) => b.startsWith("/api/schedule") - a.startsWith("/api/schedule") || a.length - b.length);
    clear(root, el("div", {}, el("h1", {}, "The scheduler as a service"), el("p", {}, told.info.description),
      el("p", { class: "soft" }, `FLARE ${told.info.version}. The same for programs: `, el("a", { href: "/api/openapi.json" }, "/api/openapi.json"), " (OpenAPI).")),
      ...routes.flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => route(path, method, one))));
  } catch (error) {
    clear(root, el("p", { class: "error", role: "alert" }, error.message));
  }
}

api.takeTokenFromAddress();
themeButton(document.getElementById("theme"));
show();
