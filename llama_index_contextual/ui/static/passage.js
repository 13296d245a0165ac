// Copy a quotation or a link, and open the next or the previous result with "j" and "k". The page works without it.
"use strict";

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // without HTTPS, browsers other than those on this machine have no clipboard
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

for (const button of document.querySelectorAll("[data-copy], [data-copy-link]")) {
  button.hidden = false;
  const label = button.querySelector("span");
  const name = label.textContent;
  button.addEventListener("click", async () => {
    const { copy: text, copyLink: link } = button.dataset;
    const done = await copy(link === undefined ? text : new URL(link, location).href);
    label.textContent = document.getElementById("copied").textContent = done ? "Copied" : "Copying is not permitted";
    setTimeout(() => { label.textContent = name; }, 2000);
  });
}

document.addEventListener("keydown", (event) => {
  const rel = { j: "next", k: "prev" }[event.key];
  if (!rel || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  document.querySelector(`.way a[rel="${rel}"]`)?.click();
});
