// The message box: drafts for each chat, growing height, files, edits, the list of commands.

import { $, button, element } from "./dom.js";
import { sizeText } from "./files.js";
import { load, remove, save } from "./storage.js";

const MAX_CHARS = 200_000;
const MAX_FILES = 10;

export class Composer {
  #form = $("#compose");
  #text = $("#composer");
  #send = $("#send");
  #hint = $("#hint");
  #hintNodes = [...this.#hint.childNodes];
  #commands = $("#commands");
  #attach = $("#attach");
  #picker = $("#picker");
  #chosen = $("#chosen");
  #editing = $("#editing");
  #chat = null;
  #files = [];
  #edits = null;
  #maxFileBytes = 0;

  #known = [];
  #fitting = [];

  // onSend(text, {files, edits})
  constructor({ onSend }) {
    this.onSend = onSend;
    this.#attach.addEventListener("click", () => this.#picker.click());
    this.#picker.addEventListener("change", () => {
      this.#add(this.#picker.files);
      this.#picker.value = "";
    });
    this.#editing.querySelector("button").addEventListener("click", () => this.#endEdit());
    const main = $("#main");
    main.addEventListener("dragover", (event) => this.#takesFiles(event.dataTransfer) && event.preventDefault());
    main.addEventListener("drop", (event) => this.#drop(event, event.dataTransfer));
    this.#text.addEventListener("paste", (event) => this.#drop(event, event.clipboardData));
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
    this.#files = [];
    this.#endEdit();
  }

  // [[name without a slash, meaning], …]; the first ones are matched with the text typed so far.
  set commands(commands) {
    const first = this.#known.length === 0;
    this.#known = commands;
    if (first) this.#showCommands();
  }

  // 0: no files are taken.
  set maxFileBytes(bytes) {
    this.#maxFileBytes = bytes;
    this.#attach.hidden = bytes === 0;
  }

  // The next text replaces that of the message `edits`.
  edit(edits, text) {
    this.#edits = edits;
    this.#files = [];
    this.#text.value = text;
    this.#refresh();
    this.focus();
  }

  fill(text) {
    this.#text.value = text;
    this.#changed();
    this.focus();
  }

  focus() {
    this.#text.focus();
  }

  #endEdit() {
    const focused = this.#editing.contains(document.activeElement);
    this.#edits = null;
    this.#text.value = load(`draft.${this.#chat}`, "");
    this.#refresh();
    if (focused) this.focus();
  }

  #takesFiles(transfer) {
    return this.#maxFileBytes > 0 && !this.#edits && transfer.types.includes("Files");
  }

  #drop(event, transfer) {
    if (!this.#takesFiles(transfer)) return;
    event.preventDefault();
    this.#add(transfer.files);
  }

  #add(files) {
    this.#files = [...this.#files, ...files];
    this.#refresh();
    this.focus();
  }

  #remove(file) {
    this.#files = this.#files.filter((other) => other !== file);
    this.#refresh();
    this.focus();
  }

  #changed() {
    if (this.#edits) return this.#refresh();
    if (this.#text.value) save(`draft.${this.#chat}`, this.#text.value);
    else remove(`draft.${this.#chat}`);
    this.#refresh();
  }

  #refresh() {
    const problem = this.#problem();
    this.#send.disabled = problem !== "" || !(this.#text.value.trim() || this.#files.length);
    this.#showHint(problem);
    this.#editing.hidden = !this.#edits;
    this.#attach.disabled = Boolean(this.#edits);
    this.#chosen.hidden = !this.#files.length;
    this.#chosen.replaceChildren(...this.#files.map((file) => this.#chip(file)));
    this.#showCommands();
    this.#grow();
  }

  #problem() {
    const bytes = this.#files.reduce((sum, file) => sum + file.size, 0);
    if (this.#text.value.length > MAX_CHARS) return "This message is longer than the limit of 200,000 characters.";
    if (this.#files.length > MAX_FILES) return `A message has at most ${MAX_FILES} files.`;
    if (bytes <= this.#maxFileBytes) return "";
    return `These files add up to ${sizeText(bytes)}; the limit is ${sizeText(this.#maxFileBytes)}.`;
  }

  #chip(file) {
    const cross = button("×", () => this.#remove(file), { ariaLabel: `Remove ${file.name}` });
    return element("li", { className: "file" }, file.name, element("small", {}, sizeText(file.size)), cross);
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
    if (this.#completes(event)) return;
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      if (matchMedia("(pointer: coarse)").matches) return;
      event.preventDefault();
      this.#submit();
    } else if (["ArrowUp", "ArrowDown"].includes(event.key) && !this.#commands.hidden) {
      event.preventDefault();
      this.#commands[event.key === "ArrowUp" ? "lastElementChild" : "firstElementChild"].focus();
    } else if (event.key === "Escape") {
      if (this.#commands.hidden && this.#edits) this.#endEdit();
      this.#commands.hidden = true;
    }
  }

  // Enter and Tab write out what only one command begins with; once it is whole, Enter sends it.
  #completes(event) {
    const [only, other] = this.#fitting;
    const asked = ["Enter", "Tab"].includes(event.key) && !event.shiftKey && !event.isComposing;
    if (!asked || this.#commands.hidden || !only || other || this.#text.value === `/${only[0]}`) return false;
    event.preventDefault();
    this.fill(`/${only[0]}`);
    return true;
  }

  #submit() {
    const text = wellFormed(this.#text.value);
    if (this.#send.disabled) return;
    const [files, edits] = [this.#files, this.#edits];
    this.#files = [];
    if (edits) this.#endEdit();
    else {
      this.#text.value = "";
      this.#changed();
    }
    this.onSend(text, { files, edits: edits ?? undefined });
    this.focus();
  }

  #showCommands() {
    const typed = this.#text.value;
    this.#fitting = this.#known.filter(([name]) => typed && `/${name}`.startsWith(typed));
    this.#commands.replaceChildren(...this.#fitting.map((command) => this.#commandButton(command)));
    this.#commands.hidden = this.#fitting.length === 0;
  }

  #commandButton([name, meaning]) {
    const choose = button("", () => this.fill(`/${name}`));
    choose.append(element("b", {}, `/${name}`), element("span", {}, meaning));
    return choose;
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

// Half of a surrogate pair is not text and would be refused.
function wellFormed(text) {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}
