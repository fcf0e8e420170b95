// Elements without markup: every text becomes a text node, so that no name of a device or run can be anything else.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element: el("button", {class: "quiet", onclick: f}, "text", another). */
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Take everything out of a node, and put this in. */
export function clear(node, ...children) {
  node.replaceChildren(...children);
  return node;
}

let number = 0;

/** A name that no other element of the page has. */
export function uid(stem = "id") {
  number += 1;
  return `${stem}-${number}`;
}
