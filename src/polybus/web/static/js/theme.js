// Light, dark, or as the system has it.

const KEY = "polybus-theme";
const ORDER = ["system", "light", "dark"];

export function prepareTheme(button) {
  let chosen = ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  const apply = () => {
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
    localStorage.setItem(KEY, chosen);
    apply();
  });
  apply();
}
