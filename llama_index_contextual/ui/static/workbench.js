// Keyboard, copying, filters that apply at once, and results while typing. The pages work without it.

const box = document.getElementById("q");
const isTyping = (element) => element instanceof HTMLElement && element.matches("input:not([type=checkbox]), textarea, select");

// ---- keyboard: "/" goes to the search box, j/k or the arrow keys move through the results

// The first "/" in a box that has the focus from the start means "go to the box", as everywhere else on the page.
let slashGoesToBox = box?.autofocus === true; // the browser may set the focus after this line

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
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
      document.querySelector(".tabs a")?.click(); // the search, whose box takes the focus
    }
    return;
  }
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  const links = [...document.querySelectorAll(".result-link")].filter((link) => link.checkVisibility());
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

// ---- copying: a quotation or a link; the button shows the outcome for a moment

const copy = async (text) => {
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
};
const showCopyButtons = () =>
  document.querySelectorAll("[data-copy], [data-copy-link]").forEach((button) => { button.hidden = false; });
showCopyButtons();

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (!button) return;
  const { copy: text, copyLink: link } = button.dataset;
  const label = button.querySelector("span");
  const name = (button.dataset.label ??= label.textContent); // also if it still shows the outcome of the last click
  const done = await copy(link === undefined ? text : new URL(link, location).href);
  label.textContent = document.getElementById("copied").textContent = done ? "Copied" : "Copying is not permitted";
  setTimeout(() => { label.textContent = name; }, 2000);
});

// A picture that cannot be drawn leaves no empty frame.
document.addEventListener("error", (event) => event.target.closest?.(".thumb")?.remove(), true);

// ---- filters and results while typing

const form = document.getElementById("search");
const rail = document.getElementById("filters");
const WIDE = matchMedia("(min-width: 56.01rem)");

rail?.addEventListener("change", (event) => {
  if (WIDE.matches && event.target.matches("[type=checkbox]")) form.requestSubmit();
});
if (rail) {
  const hideApply = () => rail.querySelector(".apply").toggleAttribute("hidden", !rail.querySelector(".options[open]"));
  rail.addEventListener("toggle", hideApply, true);
  hideApply();
}

const results = document.getElementById("results");
const status = document.getElementById("typed");
const DELAY = 150; // milliseconds without a key

if (form && box && results) {
  const before = [...results.childNodes];
  const question = box.value;
  let request = new AbortController();
  let timer = 0;

  const show = async () => {
    request.abort();
    request = new AbortController();
    if (box.value.trim() === question.trim()) {
      results.replaceChildren(...before);
      return;
    }
    if (!box.value.trim()) return;
    const fields = new URLSearchParams(new FormData(form));
    fields.set("mode", "lexical"); // words only: no question leaves the machine before it is sent
    fields.set("part", "results");
    try {
      const response = await fetch(`${form.action}?${fields}`, { signal: request.signal });
      if (!response.ok) return;
      const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
      results.replaceChildren(...parsed.body.childNodes);
      document.dispatchEvent(new Event("answered")); // for collect.js
      status.textContent = results.querySelector(".verdict")?.textContent ?? "";
      showCopyButtons();
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  box.addEventListener("input", () => {
    clearTimeout(timer);
    request.abort();
    timer = setTimeout(show, DELAY);
  });
  form.addEventListener("submit", () => {
    clearTimeout(timer);
    request.abort();
  });
}
