// Turns the server's safe HTML of an answer into nodes: code with a copy button, tables that
// scroll, links that open elsewhere, pictures as links (the page loads nothing from other sites).

export function answerNodes(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const content = template.content;
  content.querySelectorAll("img").forEach((image) => image.replaceWith(pictureLink(image)));
  content.querySelectorAll("a").forEach((link) => {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  });
  content.querySelectorAll("table").forEach((table) => wrap(table, "table", "Table"));
  content.querySelectorAll("pre").forEach((pre) => wrapCode(pre));
  return content;
}

function pictureLink(image) {
  const link = document.createElement("a");
  link.href = image.getAttribute("src");
  link.textContent = image.alt || "Picture";
  return link;
}

function wrap(element, className, label) {
  const frame = document.createElement("div");
  frame.className = className;
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", label);
  element.replaceWith(frame);
  frame.append(element);
}

function wrapCode(pre) {
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "code";
  const head = document.createElement("div");
  const name = document.createElement("span");
  name.textContent = language;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", "Copy code");
  copy.addEventListener("click", () => copyText(pre, copy));
  head.append(name, copy);
  const frame = document.createElement("div");
  frame.className = "code";
  pre.tabIndex = 0;
  pre.replaceWith(frame);
  frame.append(head, pre);
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
