// What was started here: is it going on, what did it say last, stop and resume.

import { clear, el } from "../dom.js";

const LOOK_MS = 2000;
const SHOWN = 8;

/** `jobs(root, {api, announce})` gives {look(), stop()}. */
export function jobs(root, { api, announce }) {
  let timer = null, stopped = false, drawn = "";

  async function look() {
    clearTimeout(timer);
    try {
      const told = await api.get("/api/jobs");
      if (!stopped) draw(told.jobs);
    } catch {
      // the page says elsewhere that the studio does not answer
    }
    if (!stopped) timer = setTimeout(look, LOOK_MS);
  }

  async function act(path, run, done) {
    try {
      await api.post(path, { run });
      announce(done);
    } catch (error) {
      announce(error.message);
      problem.set(run, error.message);
    }
    drawn = "";
    look();
  }
  const problem = new Map();

  function draw(all) {
    const now = JSON.stringify([all, [...problem]]);
    if (now === drawn) return;
    drawn = now;
    root.hidden = !all.length;
    clear(root, el("h2", {}, "Started here"), el("ul", { class: "jobs" }, all.slice(0, SHOWN).map(job)));
  }

  function job(one) {
    const state = one.state === "running" ? (one.stopping ? "stopping" : "running") : one.state === "failed" ? "failed" : one.code === 130 ? "interrupted" : "ended";
    const wrong = state === "failed" ? one.said.at(-1) ?? `it ended with code ${one.code}` : problem.get(one.run);
    return el("li", {},
      el("span", { class: "job-name" }, one.run), el("span", { class: `state ${state === "failed" ? "damaged" : state}` }, state),
      el("span", { class: "space" }),
      state === "running" && el("button", { type: "button", onclick: () => act("/api/runs/stop", one.run, `${one.run} stops.`) }, "Stop"),
      state === "stopping" && el("button", { type: "button", onclick: () => act("/api/runs/stop", one.run, `${one.run} is ended.`) }, "Stop at once"),
      state === "interrupted" && el("button", { type: "button", onclick: () => act("/api/runs/resume", one.run, `${one.run} goes on.`) }, "Resume"),
      state !== "failed" && el("a", { class: "button", href: `#/runs?run=${encodeURIComponent(one.run)}` }, "Show"),
      wrong ? el("p", { class: "error" }, wrong) : one.said.length ? el("details", {}, el("summary", {}, "What it said"), el("pre", {}, one.said.join("\n"))) : "");
  }

  look();
  return {
    look,
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
