// Open the next or the previous result with "j" and "k". The page works without it.
"use strict";

document.addEventListener("keydown", (event) => {
  const rel = { j: "next", k: "prev" }[event.key];
  if (!rel || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  document.querySelector(`.way a[rel="${rel}"]`)?.click();
});
