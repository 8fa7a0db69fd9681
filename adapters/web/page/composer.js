// The message box: drafts for each chat, growing height, the list of commands.

import { load, remove, save } from "./storage.js";

const MAX_CHARS = 200_000;
const COMMANDS = [
  ["/new", "start over with an empty context"],
  ["/stop", "stop the answer that is being made"],
  ["/status", "show what Parley is doing"],
  ["/help", "show all commands"],
  ["/retry", "answer my last message again"],
];

export class Composer {
  #form = document.querySelector("#compose");
  #text = document.querySelector("#composer");
  #send = document.querySelector("#send");
  #hint = document.querySelector("#hint");
  #hintNodes = [...this.#hint.childNodes];
  #commands = document.querySelector("#commands");
  #chat = null;

  // onSend(text)
  constructor({ onSend }) {
    this.onSend = onSend;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#text.addEventListener("input", () => this.#changed());
    this.#text.addEventListener("keydown", (event) => this.#key(event));
    this.#commands.addEventListener("keydown", (event) => this.#commandKey(event));
    addEventListener("resize", () => this.#grow());
  }

  open(chat) {
    this.#chat = chat;
    this.#text.value = load(`draft.${chat}`, "");
    this.#refresh();
  }

  fill(text) {
    this.#text.value = text;
    this.#changed();
    this.focus();
  }

  focus() {
    this.#text.focus();
  }

  #changed() {
    if (this.#text.value) save(`draft.${this.#chat}`, this.#text.value);
    else remove(`draft.${this.#chat}`);
    this.#refresh();
  }

  #refresh() {
    const tooLong = this.#text.value.length > MAX_CHARS;
    this.#send.disabled = tooLong || !this.#text.value.trim();
    this.#showHint(tooLong ? "This is longer than the 200,000 characters Parley takes." : "");
    this.#showCommands();
    this.#grow();
  }

  #showHint(problem) {
    this.#hint.dataset.state = problem ? "bad" : "";
    this.#hint.replaceChildren(...(problem ? [problem] : this.#hintNodes));
  }

  #grow() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
  }

  // A keyboard on a screen has no Shift+Enter, so there Enter is for new lines.
  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      if (matchMedia("(pointer: coarse)").matches) return;
      event.preventDefault();
      this.#submit();
    } else if (event.key === "ArrowUp" && !this.#commands.hidden) {
      event.preventDefault();
      this.#commands.lastElementChild.focus();
    } else if (event.key === "Escape") {
      this.#commands.hidden = true;
    }
  }

  #submit() {
    const text = wellFormed(this.#text.value);
    if (this.#send.disabled) return;
    this.#text.value = "";
    this.#changed();
    this.onSend(text);
    this.focus();
  }

  #showCommands() {
    const typed = this.#text.value;
    const fitting = /^\/\w*$/.test(typed) ? COMMANDS.filter(([name]) => name.startsWith(typed)) : [];
    this.#commands.replaceChildren(...fitting.map((command) => this.#commandButton(command)));
    this.#commands.hidden = fitting.length === 0;
  }

  #commandButton([name, meaning]) {
    const button = document.createElement("button");
    button.type = "button";
    const title = document.createElement("b");
    title.textContent = name;
    const text = document.createElement("span");
    text.textContent = meaning;
    button.append(title, text);
    button.addEventListener("click", () => this.fill(name));
    return button;
  }

  #commandKey(event) {
    const focused = document.activeElement;
    const steps = { ArrowUp: focused.previousElementSibling, ArrowDown: focused.nextElementSibling };
    if (event.key in steps) {
      event.preventDefault();
      (steps[event.key] ?? this.#text).focus();
    } else if (event.key === "Escape") {
      this.#commands.hidden = true;
      this.focus();
    }
  }
}

// Half of a surrogate pair is no text and would be refused.
function wellFormed(text) {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
