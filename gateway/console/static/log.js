// The live log: while the page is seen it asks once a second for the lines that came since, as a page
// of the same address, and puts their rows on top. Without this script the page shows what there is.

const EVERY_MS = 1000;
const MOST_ROWS = 1000;

const lines = document.getElementById("lines");
const follow = document.getElementById("follow");
const box = follow.querySelector("input");
let isAsking = false;

async function ask() {
  if (isAsking || document.hidden || !box.checked) return;
  isAsking = true;
  try {
    const address = new URL(location.href);
    address.searchParams.set("after", lines.dataset.count);
    const answer = await fetch(address, { redirect: "error" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    take(page.getElementById("lines"));
  } catch {
    // The gateway restarts, or the network is gone: the next second asks again.
  } finally {
    isAsking = false;
  }
}

function take(found) {
  if (!found) return;
  // A number that has become smaller is that of another process: its lines begin with 1.
  const begunAnew = Number(found.dataset.count) < Number(lines.dataset.count);
  lines.dataset.count = begunAnew ? "0" : found.dataset.count;
  if (!found.rows.length) return;
  document.getElementById("none")?.remove();
  lines.prepend(...[...found.rows].map((row) => document.importNode(row, true)));
  while (lines.rows.length > MOST_ROWS) lines.deleteRow(-1);
}

follow.hidden = false;
setInterval(ask, EVERY_MS);
document.addEventListener("visibilitychange", ask);
