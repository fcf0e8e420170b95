// The curves: uPlot with bands over the seeds, a mark at the round that is shown below, zoom by dragging.

import uPlot from "../../vendor/uplot/uPlot.esm.js";
import { clear, el } from "../dom.js";
import { num } from "../format.js";
import { look, pale } from "./looks.js";
import { place, shown } from "./words.js";

/** `chart(root, {onHover(x, curve), onPick(x, curve), onZoom(begin, end)})` gives {show, mark, stop}. */
export function chart(root, { onHover, onPick, onZoom }) {
  const holder = el("div", { class: "chart" });
  const readout = el("p", { class: "readout soft", "aria-hidden": "true" });
  clear(root, holder, readout);
  let plot = null, drawn = null, markAt = null;

  const sizes = new ResizeObserver(() => plot?.setSize(size()));
  sizes.observe(holder);
  const themed = () => drawn && show(drawn);
  document.addEventListener("themechange", themed);

  function size() {
    return { width: Math.max(240, holder.clientWidth), height: Math.max(220, Math.min(380, 0.42 * innerHeight)) };
  }

  /** Draw curves: {metric, x, label, x_label, curves, looks}. */
  function show(what) {
    const before = drawn;
    drawn = what;
    const { data, series, bands } = columns(what);
    const same = plot && before && before.metric === what.metric && before.x === what.x && alike(before, what);
    if (same && plot.themeOf === document.documentElement.dataset.theme) {
      plot.setData(data);
      return;
    }
    plot?.destroy();
    plot = new uPlot({ ...size(), ...options(what), series, bands }, data, holder);
    plot.themeOf = document.documentElement.dataset.theme;
  }

  function options(what) {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--soft").trim(), grid = style.getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui", labelFont: "12px system-ui" };
    return {
      legend: { show: false },
      padding: [10, 14, 0, 4],
      scales: { x: { time: false }, y: { range: (self, low, high) => yRange(what.metric, low, high) } },
      axes: [
        { ...axis, label: titleOf(what.x, what.x_label), labelSize: 20, size: 38, values: (self, ticks) => ticks.map((tick) => tickOf(what.x, tick)) },
        { ...axis, label: titleOf(what.metric, what.label), labelSize: 24, size: 62, values: (self, ticks) => ticks.map((tick) => shown(what.metric, tick).replace(".0 %", " %")) },
      ],
      cursor: { y: false, drag: { x: true, y: false, dist: 6 }, points: { size: (self, at) => (at % 3 === 1 ? 8 : 0) } },
      hooks: {
        setCursor: [(self) => moved(self)],
        setSelect: [(self) => selected(self)],
        draw: [(self) => drawMark(self)],
        ready: [(self) => listen(self)],
      },
    };
  }

  function listen(self) {
    let down = null;
    self.over.addEventListener("pointerdown", (event) => { down = event.clientX; });
    self.over.addEventListener("click", (event) => {
      if (down !== null && Math.abs(event.clientX - down) > 5) return;
      const { left } = self.cursor;
      if (left >= 0) onPick(self.posToVal(left, "x"), focused(self));
    });
    self.over.addEventListener("dblclick", () => onZoom(null, null));
  }

  function selected(self) {
    const { left, width } = self.select;
    if (width < 6) return;
    self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    onZoom(self.posToVal(left, "x"), self.posToVal(left + width, "x"));
  }

  /** The curve that is nearest to the pointer, by its number. */
  function focused(self) {
    const at = self.cursor.idx, y = self.cursor.top;
    if (at === null || at === undefined) return 0;
    let best = 0, least = Infinity;
    drawn.curves.forEach((_, number) => {
      const value = self.data[1 + 3 * number][at];
      if (value === null || value === undefined) return;
      const far = Math.abs(self.valToPos(value, "y") - y);
      if (far < least) [best, least] = [number, far];
    });
    return best;
  }

  function moved(self) {
    const { left, idx } = self.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) {
      readout.textContent = "";
      return;
    }
    const x = self.posToVal(left, "x"), number = focused(self);
    const at = self.data[0][idx];
    const values = drawn.curves.map((curve, place_) => [curve.label, self.data[1 + 3 * place_][idx]]).filter(([, value]) => value !== null && value !== undefined);
    readout.textContent = `${place(drawn.x, at)}:  ${values.slice(0, 6).map(([label, value]) => `${label} ${shown(drawn.metric, value)}`).join("   ")}`;
    onHover(x, number);
  }

  function drawMark(self) {
    if (markAt === null) return;
    const x = Math.round(self.valToPos(markAt, "x", true));
    const { left, top, width, height } = self.bbox;
    if (x < left - 1 || x > left + width + 1) return;
    const style = getComputedStyle(document.documentElement);
    self.ctx.save();
    self.ctx.strokeStyle = style.getPropertyValue("--focus").trim();
    self.ctx.lineWidth = 2 * devicePixelRatio;
    self.ctx.beginPath();
    self.ctx.moveTo(x, top);
    self.ctx.lineTo(x, top + height);
    self.ctx.stroke();
    self.ctx.restore();
  }

  return {
    show,
    clear() {
      plot?.destroy();
      plot = drawn = null;
      readout.textContent = "";
    },
    /** Mark a place of the x axis; null: none. */
    mark(x) {
      if (markAt === x) return;
      markAt = x;
      plot?.redraw(false, false);
    },
    stop() {
      sizes.disconnect();
      document.removeEventListener("themechange", themed);
      plot?.destroy();
    },
  };
}

function alike(one, other) {
  const names = (what) => what.curves.map((curve) => `${curve.label}:${what.looks.get(curve.label)}`).join("\n");
  return names(one) === names(other);
}

/** What uPlot wants: one x axis, and for each curve its line and the two edges of its band. */
function columns({ curves, looks }) {
  const data = curves.length === 1
    ? [curves[0].x, curves[0].y, curves[0].low, curves[0].high]
    : curves.length ? uPlot.join(curves.map(({ x, y, low, high }) => [x, y, low, high])) : [[]];
  const series = [{}], bands = [];
  curves.forEach((curve, number) => {
    const { colour, dash } = look(looks.get(curve.label) ?? number);
    const few = curve.x.length <= 60;
    series.push({ label: curve.label, stroke: colour, width: 2.2, dash, spanGaps: true, points: { show: few, size: 5, fill: colour } });
    for (const edge of ["low", "high"]) series.push({ label: edge, stroke: "transparent", width: 0, points: { show: false }, spanGaps: true });
    bands.push({ series: [3 + 3 * number, 2 + 3 * number], fill: pale(colour) });
  });
  return { data, series, bands };
}

function yRange(metric, low, high) {
  if (low === null || high === null || low === undefined) return [0, 1];
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  const top = metric === "accuracy" ? Math.min(1, high + room) : high + room;
  return [low >= 0 ? Math.max(0, low - room) : low - room, top];
}

/** The title of an axis: without the unit where the ticks have theirs. */
function titleOf(name, label) {
  return name === "time" ? label : label.replace(/ \((s|J|bit)\)$/, "");
}

function tickOf(x, tick) {
  if (x === "time") return num(tick, 6);
  if (x === "rounds") return Number.isInteger(tick) ? tick.toLocaleString("en") : "";
  return place(x, tick);
}
