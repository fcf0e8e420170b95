// The shell: which screen is shown, and what all of them share.
import * as api from "./api.js";
import { clear, el } from "./dom.js";
import { themeButton } from "./theme.js";

const SCREENS = {
  cell: { module: "./cell/screen.js", title: "Cell" },
  runs: { module: "./runs/screen.js", title: "Runs" },
  new: { module: "./new-run/screen.js", title: "New run" },
};

const root = document.getElementById("screen");
const status = document.getElementById("status");
let about = null;
let takeDown = null;
let shown = "";
let turn = 0;

function announce(text) {
  document.getElementById("announce").textContent = text;
}

function navigate(hash) {
  location.hash = hash;
}

/** The name of the screen and the parameters behind it: "#/cell?seed=3". */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { name: path in SCREENS ? path : "cell", parameters: new URLSearchParams(query ?? "") };
}

function say(message) {
  clear(root, el("div", { class: "notice", role: "alert" }, el("h1", {}, "Something is wrong"), el("p", {}, message)));
}

async function show() {
  const mine = ++turn;
  const { name, parameters } = place();
  takeDown?.();
  takeDown = null;
  clear(root);
  clear(status);
  for (const link of document.querySelectorAll("nav [data-screen]")) {
    if (link.dataset.screen === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${SCREENS[name].title} – FLARE studio`;
  root.className = `screen-${name}`;
  if (shown && shown !== name) root.focus({ preventScroll: true });
  shown = name;
  try {
    about ??= await api.get("/api/about");
    const screen = await import(SCREENS[name].module);
    if (mine !== turn) return;  // the user has gone on meanwhile
    takeDown = screen.mount(root, { api, navigate, announce, about, parameters, status });
  } catch (error) {
    if (mine === turn) say(error.message);
  }
}

api.takeTokenFromAddress();
themeButton(document.getElementById("theme"));
addEventListener("hashchange", show);
show();
