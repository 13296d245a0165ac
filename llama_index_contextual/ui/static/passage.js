// Open the next or the previous result with "j" and "k", and show the marked lines of pages that are wider than the
// screen. The page works without it.
"use strict";

for (const sheet of document.querySelectorAll(".sheet")) {
  const marks = sheet.querySelector(".marks")?.getBoundingClientRect();
  const boxes = [...sheet.querySelectorAll(".marks rect")].map((rect) => rect.getBoundingClientRect());
  if (!marks || !boxes.length) continue;
  const left = Math.min(...boxes.map((box) => box.left));
  const right = Math.max(...boxes.map((box) => box.right));
  sheet.scrollLeft = (left + right) / 2 - marks.left - sheet.clientWidth / 2;
}

document.addEventListener("keydown", (event) => {
  const rel = { j: "next", k: "prev" }[event.key];
  if (!rel || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  document.querySelector(`.way a[rel="${rel}"]`)?.click();
});
