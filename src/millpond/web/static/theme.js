// Before anything is drawn: the colours that somebody chose, else those of the system.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("millpond-theme"); } catch { /* no storage: as the system has it */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
