// What can be taken home: CSV, JSON, SVG, PNG and a link; made in the browser, of what is shown.

import { svg } from "../dom.js";

const FORMULA = /^[=+\-@\t\r]/;

function save(name, type, content) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value === "string" && FORMULA.test(text)) text = `'${text}`;  // a spreadsheet would compute it
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv(columns, rows) {
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

const RESULT = ["selected", "bandwidth_hz", "tau", "compute_s", "upload_s", "finish_s", "reason", "remedy"];

/** The schedule, a row each device; of two policies one below the other. */
export function saveSchedule(views) {
  const rows = views.flatMap((view) => view.devices.map((one) => [view.policy, one.name, one.sends, ...RESULT.slice(1).map((name) => one[name])]));
  save("schedule.csv", "text/csv", csv(["policy", "device", ...RESULT], rows));
}

/** The devices as `flare schedule` reads them. */
export function saveDevices(view) {
  const columns = ["name", "tau", "compute_s", "snr_hz", "distance_m", "payload_bits"];
  if (view.devices[0].weight !== null) columns.push("weight");
  save("devices.csv", "text/csv", csv(columns, view.devices.map((one) => columns.map((name) =>
    name === "distance_m" ? Math.max(1, one.distance_m ?? 1) : one[name]))));
}

export function saveJson(state, views) {
  save("cell.json", "application/json", JSON.stringify({ flare: "cell", state, views }, null, 1));
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "paint-order", "opacity", "fill-opacity", "stroke-opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline", "display"];

/** A copy of a drawing that looks the same without the page's style sheets. */
function copied(drawing) {
  const copy = drawing.cloneNode(true);
  const from = [drawing, ...drawing.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, at) => {
    const style = getComputedStyle(node);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      if (value) to[at].setAttribute(name, value.startsWith("url(") && node.hasAttribute(name) ? node.getAttribute(name) : value);
    }
    for (const name of ["tabindex", "role", "aria-label", "aria-describedby", "aria-roledescription"]) to[at].removeAttribute(name);
  });
  return copy;
}

/** Map, times and band as one drawing. */
export function picture(root, views) {
  const style = getComputedStyle(document.body), map = copied(root.querySelector("svg.map")), side = 460, gap = 24;
  const parts = [];
  let x = side + 2 * gap, height = side + 2 * gap + 30;
  map.setAttribute("x", gap);
  map.setAttribute("y", gap + 30);
  map.setAttribute("width", side);
  map.setAttribute("height", side);
  parts.push(map);
  root.querySelectorAll(".result").forEach((result, at) => {
    const view = views[at], gantt = result.querySelector("svg.gantt"), band = result.querySelector("svg.band");
    const told = `${result.querySelector(".proof").textContent}, ${result.querySelector(".ends").textContent}`;
    const wide = Math.max(Number(band.getAttribute("width")), 6.8 * told.length);  // room for what stands above
    let y = gap + 44;
    parts.push(svg("text", { x, y: gap + 16, "font-size": 15, "font-weight": 600, fill: style.color }, `Policy ${view.policy}: ${view.num_selected} of ${view.devices.length} devices send`));
    parts.push(svg("text", { x, y: gap + 36, "font-size": 12, fill: style.color }, told));
    for (const drawing of [gantt, band]) {
      if (!drawing) continue;
      const copy = copied(drawing);
      copy.setAttribute("x", x);
      copy.setAttribute("y", y);
      parts.push(copy);
      y += Number(drawing.getAttribute("height")) + 14;
    }
    height = Math.max(height, y + gap);
    x += wide + gap;
  });
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: x, height, viewBox: `0 0 ${x} ${height}`, "font-family": style.fontFamily },
    svg("rect", { width: x, height, fill: getComputedStyle(root.querySelector(".panel")).backgroundColor }), parts);
  return { text: new XMLSerializer().serializeToString(whole), width: x, height };
}

export function saveSvg(root, views) {
  save("cell.svg", "image/svg+xml", picture(root, views).text);
}

export async function savePng(root, views) {
  const { text, width, height } = picture(root, views);
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = 2 * width;
    canvas.height = 2 * height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    save("cell.png", "image/png", await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
  } finally {
    URL.revokeObjectURL(address);
  }
}
