// Collects questions with the passages that answer them, in this tab, and saves them as a file for `evaluate`.
// A view needs only buttons: <button type="button" data-question="…" data-evidence="{JSON}" aria-pressed="false" hidden>.
"use strict";

{
  const key = `evidence:${location.pathname.split("/").slice(0, 3).join("/")}`;
  const bar = document.createElement("div");

  const read = () => JSON.parse(sessionStorage.getItem(key) || "[]");

  const write = (items) => {
    sessionStorage.setItem(key, JSON.stringify(items));
    show();
  };

  const isOf = (button) => (item) => item.question === button.dataset.question && item.evidence === button.dataset.evidence;

  const button = (text, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "act";
    made.textContent = text;
    made.addEventListener("click", action);
    return made;
  };

  const show = () => {
    const items = read();
    for (const one of document.querySelectorAll("button[data-evidence]")) {
      one.hidden = !one.dataset.question;
      one.setAttribute("aria-pressed", String(items.some(isOf(one))));
    }
    const questions = new Set(items.map((item) => item.question)).size;
    bar.hidden = !questions;
    bar.firstChild.textContent = `${questions} ${questions === 1 ? "question" : "questions"} with answers`;
  };

  // One line for each question, with all passages that were marked for it; `evaluate` reads the file.
  const save = () => {
    const lines = new Map();
    for (const { question, evidence } of read()) {
      lines.set(question, [...(lines.get(question) || []), JSON.parse(evidence)]);
    }
    const rows = [...lines].map(([question, evidence]) => `${JSON.stringify({ question, evidence })}\n`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(rows, { type: "application/jsonl" }));
    link.download = "questions.jsonl";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  bar.className = "collected";
  bar.setAttribute("role", "region");
  bar.setAttribute("aria-label", "Collected questions");
  bar.append(document.createElement("span"), button("Download questions", save), button("Forget them", () => write([])));
  document.getElementById("main").append(bar);
  show();

  document.addEventListener("click", (event) => {
    const one = event.target.closest?.("button[data-evidence]");
    if (!one) return;
    const others = read().filter((item) => !isOf(one)(item));
    const isNew = others.length === read().length;
    write(isNew ? [...others, { question: one.dataset.question, evidence: one.dataset.evidence }] : others);
  });

  document.addEventListener("answered", show); // a view has inserted new buttons
}
