// Keyboard: "/" goes to the search box, j/k or the arrow keys move through the results. The pages work without it.
"use strict";

const isTyping = (element) => element instanceof HTMLElement && element.matches("input, textarea, select, [contenteditable]");

// The first "/" in a box that has the focus from the start means "go to the box", as everywhere else on the page.
let slashGoesToBox = document.getElementById("q")?.autofocus === true; // the browser may set the focus after this line

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const box = document.getElementById("q");
  if (event.target === box) {
    if (slashGoesToBox && event.key === "/" && !box.value) event.preventDefault();
    slashGoesToBox = false;
  }
  if (event.key === "Escape" && event.target === box) {
    box.blur();
    return;
  }
  const fromBox = event.target === box && event.key === "ArrowDown";
  if (isTyping(event.target) && !fromBox) return;
  if (event.key === "/") {
    event.preventDefault();
    if (box) {
      box.focus();
      box.select();
    } else {
      document.querySelector(".bar nav a")?.click(); // the search, whose box takes the focus
    }
    return;
  }
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  const links = [...document.querySelectorAll(".result-link")];
  if (!step || !links.length) return;
  const at = links.indexOf(document.activeElement);
  if (at < 0 && event.key.startsWith("Arrow") && !fromBox) return; // the arrow keys scroll until a result has the focus
  const next = at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + step));
  if (step < 0 && at === 0 && box) {
    box.focus();
  } else {
    links[next].focus();
    links[next].closest(".result").scrollIntoView({ block: "nearest" });
  }
  event.preventDefault();
});
