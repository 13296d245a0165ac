// Shows the progress of the ingestion that is running, and loads the page again when it has ended.
"use strict";

const refresh = async () => {
  try {
    const response = await fetch(location.href);
    const current = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("now");
    if (response.ok && !current) return location.reload();
    if (current) document.getElementById("now").replaceChildren(...document.adoptNode(current).childNodes);
  } catch {
    return; // the server has been stopped
  }
  setTimeout(refresh, 1500);
};

setTimeout(refresh, 1500);
