// Dark or light: as the system says, until the user says otherwise.

const KEPT = "flare-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function theme() {
  const kept = localStorage.getItem(KEPT);
  return kept === "dark" || kept === "light" ? kept : dark.matches ? "dark" : "light";
}

function apply(button) {
  const now = theme();
  document.documentElement.dataset.theme = now;
  button.textContent = now === "dark" ? "☾ dark" : "☼ light";
  button.setAttribute("aria-label", `Colours: ${now}; switch to ${now === "dark" ? "light" : "dark"}`);
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
