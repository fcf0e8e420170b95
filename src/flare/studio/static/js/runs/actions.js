// What can be done to the run that is shown: stop, resume, begin another like it. By the same commands as a user would
// type, which are shown.

import { clear, el } from "../dom.js";
import { canResume, STATES } from "./words.js";

/** `runActions(root, {api, announce, navigate})` gives {show(line)}. */
export function runActions(root, { api, announce, navigate }) {
  let line = null, drawn = "", busy = "";

  async function act(what, path, done) {
    const run = line.id;
    busy = what;
    draw();
    try {
      await api.post(path, { run });
      announce(done);
      say(done, false);
    } catch (error) {
      say(error.message, true);
    } finally {
      busy = "";
      drawn = "";
      draw();
    }
  }

  let said = { text: "", wrong: false, run: null };
  function say(text, wrong) {
    said = { text, wrong, run: line?.id };
  }

  function draw() {
    const now = JSON.stringify([line?.id, line?.state, line?.kind, line?.problem, busy, said]);
    if (now === drawn) return;
    drawn = now;
    root.hidden = line === null;
    if (line === null) return;
    const parts = [
      el("span", { class: "run-title" }, line.id),
      el("span", { class: `state ${line.state}` }, STATES[line.state] ?? line.state),
      line.kind !== "simulation" && el("span", { class: "chip" }, line.kind),
      line.problem && el("span", { class: "error" }, line.problem),
      el("span", { class: "space" }),
      line.state === "running" && line.kind === "simulation" && button("Stop", "stop", () => act("stop", "/api/runs/stop", "It stops after its round, with a checkpoint.")),
      canResume(line) && button("Resume", "resume", () => act("resume", "/api/runs/resume", "It goes on.")),
      line.method && button("New run like this", "like", () => navigate(`#/new?like=${encodeURIComponent(line.id)}`)),
      said.text && said.run === line.id && el("p", { class: said.wrong ? "error" : "soft", role: said.wrong ? "alert" : "status" }, said.text),
    ];
    clear(root, ...parts.filter(Boolean));
  }

  function button(text, what, onclick) {
    return el("button", { type: "button", disabled: busy !== "", onclick }, busy === what ? `${text} …` : text);
  }

  return {
    show(now) {
      if (now?.id !== line?.id || now?.state !== line?.state) said = { text: "", wrong: false, run: null };
      line = now;
      draw();
    },
  };
}
