// The New run screen: the configuration as a form in sections, checked while one types by the code that will read it,
// with the command that does the same.

import { clear, el, uid } from "../dom.js";
import { copy, field } from "./field.js";
import { jobs } from "./jobs.js";
import { pairs } from "./pairs.js";

const KEPT = "flare-new-run";
const CHECK_MS = 250;
const VIEWS = { common: "Common", all: "All settings", changed: "Changed" };

export function mount(root, context) {
  const screen = new NewRunScreen(root, context);
  screen.begin();
  return () => screen.stop();
}

class NewRunScreen {
  constructor(root, context) {
    Object.assign(this, { root, context, api: context.api });
    this.like = context.parameters?.get("like") ?? null;
    const kept = this.like === null ? readKept() : {};
    this.values = new Map(Object.entries(kept.values ?? {}));
    this.entries = kept.entries ?? [];
    this.seeds = kept.seeds ?? 1;
    this.name = kept.name ?? "";
    this.view = "common";
    this.fields = new Map();
    this.errors = {};
    this.turn = 0;
    this.stopped = false;
  }

  async begin() {
    try {
      this.form = await this.api.get("/api/new-run/form");
      this.parts = new Map(this.form.parts.map((part) => [part.setting, part]));
      if (this.like !== null) await this.fillFromRun(this.like);
    } catch (error) {
      if (this.stopped) return;
      if (!this.form) {
        clear(this.root, el("p", { class: "error", role: "alert" }, error.message));
        return;
      }
      this.said = error.message;
    }
    if (this.stopped) return;
    this.build();
    this.checkSoon(0);
  }

  build() {
    this.search = el("input", { type: "search", placeholder: "Find a setting …", "aria-label": "Find a setting", oninput: () => this.filter() });
    this.views = el("div", { class: "segments", role: "group", "aria-label": "Which settings" },
      Object.entries(VIEWS).map(([view, text]) => el("button", { type: "button", "data-view": view, "aria-pressed": String(view === this.view),
        onclick: () => this.setView(view) }, text)));
    const file = el("input", { type: "file", accept: ".toml,text/plain", class: "unseen", id: uid("file"), "aria-label": "Configuration file", onchange: () => this.readFile(file) });
    this.note = el("p", { class: "note", role: "status" }, this.said ?? "");
    const bar = el("div", { class: "panel new-bar" }, el("h1", {}, "New run"), this.search, this.views, el("span", { class: "space" }),
      el("label", { class: "button", for: file.id }, "Open a file …"), file,
      el("button", { type: "button", onclick: () => this.reset() }, "Defaults"), this.note);
    this.sections = el("div", { class: "new-sections" });
    this.nav = el("nav", { class: "new-nav", "aria-label": "Sections" });
    this.jobsRoot = el("section", { class: "panel new-jobs", "aria-label": "Started here", hidden: true });
    this.buildFoot();
    clear(this.root, bar, this.nav, this.sections, this.jobsRoot, this.foot);
    this.jobs = jobs(this.jobsRoot, this.context);
    this.buildSections();
  }

  buildFoot() {
    this.command = el("code", {});
    this.copied = el("button", { type: "button", onclick: () => this.copyCommand() }, "Copy");
    this.start = el("button", { type: "button", class: "primary", onclick: () => this.startRun() }, "Start");
    this.nameField = el("input", { type: "text", id: uid("name"), value: this.name, spellcheck: "false", autocomplete: "off", "aria-describedby": "name-wrong",
      oninput: () => { this.name = this.nameField.value.trim(); this.changed(); } });
    this.nameWrong = el("p", { class: "error field-wrong", id: "name-wrong" });
    this.wrong = el("p", { class: "error", role: "status" });
    this.foot = el("section", { class: "panel new-foot", "aria-label": "Command" },
      el("div", { class: "foot-line" }, el("label", { for: this.nameField.id }, "Folder of the run"), this.nameField, this.nameWrong, el("span", { class: "space" }), this.wrong, this.start),
      el("div", { class: "command" }, el("span", { class: "soft" }, "The same in a terminal:"), this.command, this.copied));
  }

  buildSections() {
    this.fields.clear();
    const nodes = [this.severalSection(), ...this.form.sections.filter((section) => section.name).map((section) => this.section(section)), this.otherSection()];
    clear(this.sections, ...nodes);
    clear(this.nav, ...nodes.map((node) => el("button", { type: "button", class: "quiet", "data-for": node.id,
      onclick: () => { node.scrollIntoView({ block: "start" }); node.querySelector("input, select")?.focus({ preventScroll: true }); } },
    el("span", {}, node.dataset.title), el("span", { class: "count" }))));
    this.filter();
    this.drawErrors();
  }

  section({ name, title, doc, settings }) {
    const grid = el("div", { class: "fields" });
    for (const setting of settings) {
      grid.append(this.fieldOf(setting, setting.name).node);
      if (this.parts.has(setting.name)) grid.append(...this.optionsOf(this.parts.get(setting.name)).map((each) => each.node));
    }
    return el("section", { class: "panel new-section", id: uid("section"), "data-title": title, "data-name": name },
      el("h2", {}, el("span", {}, title), el("code", { class: "soft small" }, name ? `[${name}]` : "")), el("p", { class: "soft" }, doc), grid);
  }

  fieldOf(setting, name) {
    const part = this.parts.get(name);
    const made = field(setting, {
      value: this.values.get(name) ?? null,
      names: part ? part.things : null,
      free: this.values.has("plugins"),  // which may have any names
      onChange: (text) => this.set(name, text),
    });
    made.common = setting.common ?? true;
    made.name = name;
    this.fields.set(name, made);
    return made;
  }

  optionsOf(part) {
    const chosen = this.values.get(part.setting) ?? this.defaultOf(part.setting);
    const thing = part.things.find((each) => each.name === chosen);
    return (thing?.options ?? []).map((option) => {
      const named = this.settingOf(part.setting);
      const made = this.fieldOf({ ...option, common: named.common, only_with: named.only_with }, `${part.table}.${option.key}`);
      made.node.classList.add("option");
      made.node.querySelector("label").prepend(el("span", { class: "soft" }, `${chosen}: `));
      made.of = part.setting;
      return made;
    });
  }

  settingOf(name) {
    return this.form.sections.flatMap((section) => section.settings).find((each) => each.name === name);
  }

  defaultOf(name) {
    return this.settingOf(name)?.default ?? "";
  }

  seedsMustBe() {
    return `a whole number, from 1 to ${this.form.max_seeds}`;
  }

  /** Several runs at once: seeds, and pairs of method and policy. */
  severalSection() {
    const seeds = { key: "seeds", doc: "how many runs, with the seeds that follow; their means get an interval from three on", kind: "whole", default: "1",
      choices: [], also: [], must_be: this.seedsMustBe(), example: null };
    const made = field(seeds, { value: this.seeds === 1 ? null : String(this.seeds), onChange: (text) => {
      this.seeds = text === null ? 1 : Number(text);
      this.changed();
    } });
    made.name = "seeds";
    made.common = true;
    this.fields.set("seeds", made);
    const names = (setting) => this.parts.get(setting).things.map((each) => each.name);
    const now = (setting) => this.values.get(setting) ?? this.defaultOf(setting);
    this.pairs = pairs(this.entries, {
      methods: names("learning.method"),
      policies: names("scheduling.policy"),
      another: () => `${now("learning.method")}:${now("scheduling.policy")}`,
      onChange: () => this.changed(),
    });
    const own = this.form.sections.find((section) => !section.name).settings.map((setting) => this.fieldOf(setting, setting.name).node);
    return el("section", { class: "panel new-section", id: uid("section"), "data-title": "Runs", "data-name": "*" },
      el("h2", {}, el("span", {}, "Runs")), el("p", { class: "soft" }, "One run, or several that are compared seed by seed: seeds, and pairs of method and policy."),
      el("div", { class: "fields" }, own[0], made.node, own.slice(1), this.pairs.node));
  }

  /** A setting by its name, as on the command line: for what was copied from elsewhere. */
  otherSection() {
    const typed = el("input", { type: "text", id: uid("other"), spellcheck: "false", placeholder: "section.key=value", "aria-describedby": "other-wrong",
      onkeydown: (event) => event.key === "Enter" && this.addOther(typed) });
    this.otherWrong = el("p", { class: "error field-wrong", id: "other-wrong" });
    return el("section", { class: "panel new-section", id: uid("section"), "data-title": "By name", "data-name": "+" },
      el("h2", {}, el("span", {}, "By name")), el("p", { class: "soft" }, "A setting as it is written behind --set, copied from elsewhere."),
      el("div", { class: "fields" }, el("div", { class: "field" }, el("div", { class: "field-head" }, el("label", { for: typed.id }, "setting")),
        el("div", { class: "with-button" }, typed, el("button", { type: "button", onclick: () => this.addOther(typed) }, "Set")), this.otherWrong)));
  }

  async addOther(typed) {
    const [name, ...rest] = typed.value.split("=");
    const key = name.trim(), text = rest.join("=").trim();
    if (!key) return;
    try {
      const told = await this.api.post("/api/new-run/check", { settings: { ...Object.fromEntries(this.values), [key]: text }, entries: [], seeds: 1, name: "" });
      this.otherWrong.textContent = rest.length ? told.errors[key] ?? "" : "Write section.key=value, such as wireless.deadline_s=0.4";
      if (this.otherWrong.textContent) return;
      this.values.set(key, text);
      typed.value = "";
      this.buildSections();
      this.changed();
      this.context.announce(`${key} is set.`);
    } catch (error) {
      this.otherWrong.textContent = error.message;
    }
  }

  set(name, text) {
    if (text === null) this.values.delete(name);
    else this.values.set(name, text);
    if (this.parts.has(name)) this.swapOptions(this.parts.get(name));
    this.changed();
    this.filter();
  }

  /** Another policy, method, ... was chosen: its options take the place of the other's. */
  swapOptions(part) {
    const anchor = this.fields.get(part.setting);
    for (const [name, made] of [...this.fields]) {
      if (made.of !== part.setting) continue;
      made.node.remove();
      this.fields.delete(name);
    }
    const now = this.optionsOf(part), kept = new Set(now.map((each) => each.name));
    for (const name of [...this.values.keys()]) if (name.startsWith(`${part.table}.`) && !kept.has(name)) this.values.delete(name);
    anchor.node.after(...now.map((each) => each.node));
    this.filter();
  }

  setView(view) {
    this.view = view;
    for (const button of this.views.children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
    this.filter();
  }

  /** Show the fields that are wanted; those with an error always. */
  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.applies();
    for (const made of this.fields.values()) {
      const text = `${made.name} ${made.setting.doc}`.toLowerCase();
      const changed = made.node.classList.contains("changed");
      const idle = made.node.classList.contains("idle") && !changed;
      const wanted = this.view === "all" || (this.view === "changed" ? changed : (made.common && !idle) || changed);
      made.node.hidden = !(made.node.classList.contains("wrong") || (words.length ? words.every((word) => text.includes(word)) : wanted));
    }
    this.sections.querySelector(".several").hidden = words.length > 0 || (this.view === "changed" && !this.entries.length);
    for (const section of this.sections.children) {
      const fields = [...section.querySelectorAll(".field:not(.several)")];
      const own = section.dataset.name === "+" ? this.view === "all" && !words.length : section.dataset.name === "*" && this.view !== "changed" && !words.length;
      section.hidden = !own && !fields.some((each) => !each.hidden && each.querySelector(".field-help"));
    }
    this.drawNav();
  }

  /** Settings that mean nothing as others are set say so. */
  applies() {
    for (const made of this.fields.values()) {
      const need = made.setting.only_with;
      if (!need) continue;
      const now = this.values.get(need.name) ?? this.defaultOf(need.name);
      made.applies(now === need.value, `Only with ${need.name} = ${need.value}`);
    }
  }

  changed() {
    sessionStorage.setItem(KEPT, JSON.stringify({ values: Object.fromEntries(this.values), entries: this.entries, seeds: this.seeds, name: this.name }));
    this.checkSoon(CHECK_MS);
  }

  asked() {
    return { settings: Object.fromEntries(this.values), entries: this.entries, seeds: this.seeds, name: this.name };
  }

  checkSoon(after) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), after);
  }

  async check() {
    const mine = ++this.turn;
    if (!Number.isInteger(this.seeds) || this.seeds < 1 || this.seeds > this.form.max_seeds) {
      this.errors = { seeds: `seeds must be ${this.seedsMustBe()}` };
      this.drawErrors();
      return;
    }
    try {
      const told = await this.api.post("/api/new-run/check", this.asked());
      if (mine !== this.turn || this.stopped) return;
      this.errors = told.errors;
      this.command.textContent = told.command;
      this.nameField.placeholder = told.folder;
    } catch (error) {
      if (mine !== this.turn || this.stopped) return;
      this.errors = { [error.field ?? ""]: error.message };
    }
    this.drawErrors();
  }

  drawErrors() {
    for (const [name, made] of this.fields) {
      made.error(this.errors[name]);
      if (this.errors[name]) made.node.hidden = false;
    }
    this.pairs.error(this.errors.entries);
    this.nameWrong.textContent = this.errors.name ?? "";
    const known = new Set([...this.fields.keys(), "entries", "name"]);
    const others = Object.entries(this.errors).filter(([name]) => !known.has(name));
    const number = Object.keys(this.errors).length;
    this.wrong.textContent = others.length ? others.map(([, message]) => message).join(" ") : number ? `${number === 1 ? "One field needs" : `${number} fields need`} another value.` : "";
    this.start.disabled = number > 0;
    this.foot.classList.toggle("wrong", number > 0);
    this.drawNav();
  }

  drawNav() {
    for (const button of this.nav.children) {
      const section = document.getElementById(button.dataset.for);
      const changed = section.querySelectorAll(".field.changed").length, wrong = section.querySelectorAll(".field.wrong").length;
      const count = button.querySelector(".count");
      count.textContent = wrong ? `${wrong} wrong` : changed ? `${changed} changed` : "";
      count.classList.toggle("error", wrong > 0);
      button.hidden = section.hidden;
    }
  }

  async copyCommand() {
    const done = await copy(this.command.textContent, this.command);
    this.copied.textContent = done ? "Copied" : "Selected";
    this.context.announce(done ? "The command is in the clipboard." : "The command is selected.");
    setTimeout(() => { this.copied.textContent = "Copy"; }, 1500);
  }

  async startRun() {
    this.start.disabled = true;
    this.start.textContent = "Starting …";
    try {
      const told = await this.api.post("/api/new-run/start", this.asked());
      this.context.announce(`${told.run} is started.`);
      this.note.textContent = `${told.run} is started; it appears among the runs in a moment.`;
      this.nameField.value = this.name = "";
      this.jobs.look();
      this.jobsRoot.hidden = false;
      this.jobsRoot.scrollIntoView({ block: "nearest" });
      this.check();
    } catch (error) {
      this.errors = { ...this.errors, [error.field ?? ""]: error.message };
      this.drawErrors();
    } finally {
      this.start.textContent = "Start";
      this.start.disabled = Object.keys(this.errors).length > 0;
    }
  }

  reset() {
    this.values.clear();
    Object.assign(this, { entries: [], seeds: 1, name: "" });
    this.nameField.value = "";
    this.note.textContent = "All settings are at their defaults.";
    this.buildSections();
    this.changed();
  }

  async readFile(input) {
    const file = input.files[0];
    input.value = "";
    if (!file) return;
    try {
      const { settings } = await this.api.post("/api/new-run/read", { toml: await file.text() });
      this.values = new Map(Object.entries(settings));
      this.note.className = "note";
      this.note.textContent = `${file.name} is read: ${Object.keys(settings).length} settings differ from the defaults.`;
      this.buildSections();
      this.setView(this.values.size ? "changed" : "common");
      this.changed();
    } catch (error) {
      this.note.className = "note error";
      this.note.textContent = `${file.name}: ${error.message}`;
    }
  }

  async fillFromRun(run) {
    const { settings } = await this.api.post("/api/new-run/like", { run });
    this.values = new Map(Object.entries(settings));
    this.said = `The settings are those of ${run}.`;
    history.replaceState(null, "", "#/new");
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    this.jobs?.stop();
  }
}

function readKept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}
