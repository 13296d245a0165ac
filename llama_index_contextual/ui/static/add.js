// Sends files one after the other with their progress, and shows the state of the files that were added. Without this
// script, the form sends all files at once, and the page is loaded again every few seconds.
"use strict";

const form = document.getElementById("upload");
const part = (id) => document.getElementById(id);
const [list, send, sent] = ["sending", "send", "sent"].map(part);
const types = form.dataset.types.split(" ");
const most = Number(form.dataset.most);
let chosen = [];
let isSending = false;

form.classList.add("scripted");
send.hidden = true;

const sizeWords = (size) => (size >= 1e6 ? `${(size / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(size / 1e3))} kB`);
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// ---- choosing

const reasonAgainst = ({ file, name }) => {
  const dot = name.lastIndexOf(".");
  if (dot < 0 || !types.includes(name.slice(dot).toLowerCase())) return "This type is not read";
  if (file.size > most) return `Larger than ${most / 1e6} MB`;
  return file.size ? "" : "Empty";
};

const choose = (entries) => {
  if (isSending || !entries.length) return;
  chosen = entries.map((entry) => ({ ...entry, reason: reasonAgainst(entry) }));
  list.replaceChildren(...chosen.map((entry) => {
    const item = document.createElement("li");
    const [name, state] = [document.createElement("span"), document.createElement("span")];
    name.textContent = entry.name;
    state.textContent = entry.reason || sizeWords(entry.file.size);
    state.className = entry.reason ? "bad" : "soft";
    item.append(name, state);
    entry.state = state;
    return item;
  }));
  list.hidden = false;
  const good = chosen.filter((entry) => !entry.reason);
  send.hidden = !good.length;
  send.textContent = `Add ${count(good.length, "file")}, ${sizeWords(good.reduce((sum, entry) => sum + entry.file.size, 0))}`;
  sent.textContent = "";
};

for (const field of form.querySelectorAll("input[type=file]")) {
  field.addEventListener("change", () => {
    choose([...field.files].map((file) => ({ file, name: file.webkitRelativePath || file.name })));
    field.value = "";
  });
}

// ---- dropping files and folders

const filesIn = async (entry, above = "") => {
  if (entry.isFile) {
    const file = await new Promise((done, failed) => { entry.file(done, failed); });
    return [{ file, name: above + entry.name }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const batch = await new Promise((done, failed) => { reader.readEntries(done, failed); });
    if (!batch.length) return found;
    for (const one of batch) found.push(...(await filesIn(one, `${above}${entry.name}/`)));
  }
};

for (const [name, isOver] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
  form.addEventListener(name, (event) => {
    event.preventDefault();
    form.classList.toggle("over", isOver);
  });
}
form.addEventListener("drop", async (event) => {
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [...event.dataTransfer.files].map((file) => ({ file, name: file.name }));
  choose(entries.length ? (await Promise.all(entries.map((entry) => filesIn(entry)))).flat() : files);
});

// ---- sending: a request for each file, so that one that fails can be sent again

const sendOne = (entry) => new Promise((done) => {
  const request = new XMLHttpRequest();
  const body = new FormData();
  body.append("file", entry.file, entry.name);
  request.open("POST", form.action);
  request.setRequestHeader("Accept", "application/json");
  request.upload.addEventListener("progress", ({ loaded, total }) => {
    entry.state.textContent = `${Math.round((100 * loaded) / Math.max(1, total))} %`;
  });
  request.addEventListener("load", () => {
    let answer = {};
    try {
      answer = JSON.parse(request.responseText);
    } catch {
      answer = { problem: request.status === 401 ? "Load this page again to log in" : "The server refused it" };
    }
    const refused = answer.refused?.[0]?.[1];
    entry.reason = answer.problem || "";
    entry.isDone = request.status === 200;
    entry.state.textContent = answer.problem || (refused ? `Not added: ${refused}` : "Received");
    entry.state.className = answer.problem || refused ? "bad" : "soft";
    done();
  });
  request.addEventListener("error", () => {
    entry.state.textContent = "The connection broke off";
    entry.state.className = "bad";
    done();
  });
  request.send(body);
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const open = chosen.filter((entry) => !entry.isDone && (!entry.reason || entry.canRetry));
  if (isSending || !open.length) return;
  isSending = true;
  send.disabled = true;
  for (const [at, entry] of open.entries()) {
    sent.textContent = `Sending ${at + 1} of ${open.length} …`;
    await sendOne(entry);
    entry.canRetry = !entry.isDone;
  }
  isSending = false;
  send.disabled = false;
  const failed = open.filter((entry) => !entry.isDone);
  send.hidden = !failed.length;
  send.textContent = `Send ${count(failed.length, "file")} again`;
  sent.textContent = failed.length ? "" : `${count(open.length, "file")} sent.`;
  if (!failed.length) list.hidden = true;
  refresh();
});

// ---- the state of the files

let timer = 0;
const refresh = async () => {
  clearTimeout(timer);
  try {
    const response = await fetch(location.pathname);
    if (!response.ok) return;
    const current = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("state");
    const state = part("state");
    if (current && !state.contains(document.activeElement)) state.replaceWith(document.adoptNode(current));
  } catch {
    return; // the server has been stopped
  }
  follow();
};
const follow = () => {
  if (part("state").dataset.running) timer = setTimeout(refresh, 1500);
};
follow();
