// Dark or light: as the system says, until the user says otherwise.

const KEPT = "flare-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  const kept = localStorage.getItem(KEPT);
  return kept === "dark" || kept === "light" ? kept : dark.matches ? "dark" : "light";
}

function apply(button) {
  const now = theme(), other = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = now;
  button.textContent = `${other === "dark" ? "☾" : "☼"} Use ${other}`;
  button.setAttribute("aria-label", `Use ${other} colours`);
  document.dispatchEvent(new CustomEvent("themechange", { detail: now }));
}

export function themeButton(button) {
  apply(button);
  dark.addEventListener("change", () => apply(button));
  button.addEventListener("click", () => {
    localStorage.setItem(KEPT, theme() === "dark" ? "light" : "dark");
    apply(button);
  });
}
