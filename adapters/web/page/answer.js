// Turns the server's safe HTML of an answer into nodes: code with a copy button, tables that
// scroll, links that open elsewhere, pictures as links (the page loads nothing from other sites).

import { button, element } from "./dom.js";

export function answerNodes(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const content = template.content;
  content.querySelectorAll("img").forEach((image) => {
    image.replaceWith(element("a", { href: image.getAttribute("src") }, image.alt || "Picture"));
  });
  content.querySelectorAll("a").forEach((link) => {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  });
  content.querySelectorAll("table").forEach(wrapTable);
  content.querySelectorAll("pre").forEach(wrapCode);
  return content;
}

function wrapTable(table) {
  const frame = element("div", { className: "table", tabIndex: 0, role: "region", ariaLabel: "Table" });
  table.replaceWith(frame);
  frame.append(table);
}

function wrapCode(pre) {
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "code";
  const copy = button("Copy", () => copyText(pre, copy), { ariaLabel: "Copy code" });
  const frame = element("div", { className: "code" }, element("div", {}, element("span", {}, language), copy));
  pre.tabIndex = 0;
  pre.replaceWith(frame);
  frame.append(pre);
}

async function copyText(pre, button) {
  button.textContent = (await copied(pre)) ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

// The clipboard is there only on https and localhost; elsewhere the text is left selected.
async function copied(pre) {
  try {
    await navigator.clipboard.writeText(pre.textContent.replace(/\n$/, ""));
    return true;
  } catch {
    getSelection().selectAllChildren(pre);
    return document.execCommand("copy");
  }
}
