// Before the first paint: the colours somebody chose here, or else those of the system.
"use strict";
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("tiered-theme");
  } catch {
    // Storage is switched off: the system's colours it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
