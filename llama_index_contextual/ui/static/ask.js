// Shows an answer while it is written, and keeps the conversation in this tab. Without this script, the form shows the
// finished answers.
"use strict";

const form = document.getElementById("ask");

if (form) {
  const part = (id) => document.getElementById(id);
  const [box, send, stop, status, problem, after] = ["q", "send", "stop", "status", "problem", "after"].map(part);
  const [turns, live, liveQuestion, liveText, liveSources] = ["turns", "live", "live-question", "live-text", "live-sources"].map(part);
  const stored = `conversation:${form.action}`;
  let running = null;

  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };

  // ---- the conversation in this tab ----

  // The server has sanitised the text; a parsed document runs no scripts and loads nothing.
  const insert = (html) => {
    const parsed = new DOMParser().parseFromString(html, "text/html");
    turns.append(...document.adoptNode(parsed.body).children);
  };

  const keep = () => {
    try {
      sessionStorage.setItem(stored, JSON.stringify([...turns.children].slice(-20).map((turn) => turn.outerHTML)));
    } catch {
      sessionStorage.removeItem(stored); // there is no space for so long a conversation
    }
  };

  const showTurns = () => {
    const last = turns.lastElementChild;
    after.value = last ? last.dataset.key : "";
    part("new").hidden = !last;
    form.classList.toggle("ask-further", Boolean(last));
    document.querySelector("h1").classList.toggle("hidden", Boolean(last));
    if (last) box.placeholder = "Ask a further question";
    document.dispatchEvent(new Event("answered"));
  };

  if (turns.children.length) {
    keep();
  } else {
    for (const html of JSON.parse(sessionStorage.getItem(stored) || "[]")) insert(html);
    showTurns();
  }

  part("new").addEventListener("click", () => sessionStorage.removeItem(stored));

  // ---- one answer ----

  const showProblem = ({ title, text, command }) => {
    const note = element("div", "", "note note-bad");
    note.setAttribute("role", "alert");
    const line = document.createElement("p");
    line.append(element("strong", `${title}.`), ` ${text}`);
    note.append(line);
    if (command) {
      const shell = element("pre", "", "command");
      shell.append(element("code", command));
      note.append(shell);
    }
    problem.replaceChildren(note);
    status.textContent = "";
  };

  const handlers = {
    passages({ sources }) {
      const count = sources.length;
      status.textContent = count ? `Reading ${count} ${count === 1 ? "passage" : "passages"} …` : "No passage was found.";
      for (const { number, label, url } of sources) {
        const item = document.createElement("li");
        const link = element("a", label);
        link.href = url;
        item.value = number;
        item.append(link);
        liveSources.append(item);
      }
    },
    text({ text }) {
      if (!liveText.textContent) status.textContent = "Writing …";
      liveText.append(text);
    },
    answer({ html, url }) {
      insert(html);
      live.hidden = true;
      box.value = "";
      status.textContent = "The answer is complete.";
      status.classList.add("hidden"); // it is visible, and read aloud
      history.replaceState(null, "", url);
      keep();
      showTurns();
    },
    problem: showProblem,
  };

  const read = async (body) => {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let isComplete = false;
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return isComplete;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const event of lines.map((line) => JSON.parse(line))) {
        handlers[event.event](event);
        isComplete ||= event.event === "answer" || event.event === "problem";
      }
    }
  };

  const ask = async (signal) => {
    const response = await fetch(form.action, {
      method: "POST",
      headers: { Accept: "application/x-ndjson" },
      body: new URLSearchParams(new FormData(form)),
      signal,
    });
    if (!response.ok) {
      const text = response.status === 401 ? "Load this page again to log in." : await response.text();
      showProblem({ title: "The server refused the question", text: text.slice(0, 500) });
    } else if (!(await read(response.body))) {
      showProblem({ title: "The answer is incomplete", text: "The connection to the server broke off. Ask again." });
    }
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running || !box.value.trim()) return;
    running = new AbortController();
    for (const area of [problem, liveText, liveSources]) area.replaceChildren();
    send.hidden = true;
    stop.hidden = live.hidden = false;
    liveText.setAttribute("aria-busy", "true");
    status.textContent = "Searching …";
    status.classList.remove("hidden");
    liveQuestion.textContent = box.value.trim();
    document.title = box.value.trim().slice(0, 60);
    live.scrollIntoView({ block: "start" });
    if (document.activeElement === send) stop.focus();
    try {
      await ask(running.signal);
    } catch (error) {
      if (error.name === "AbortError") {
        status.textContent = "Stopped. What is shown was not checked.";
      } else {
        showProblem({ title: "The answer is incomplete", text: "The server cannot be reached. Is it still running?" });
      }
    }
    liveText.removeAttribute("aria-busy");
    if (!liveText.textContent) live.hidden = true;
    const focused = document.activeElement === stop;
    send.hidden = false;
    stop.hidden = true;
    if (focused) send.focus();
    running = null;
  });

  stop.addEventListener("click", () => running?.abort());

  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
}
