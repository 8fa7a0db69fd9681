// The list of messages, in the order of their positions; unconfirmed ones stand at its end, and
// below it the answer that is being written.

import { answerNodes } from "./answer.js";
import { $, button, element } from "./dom.js";
import { fileNodes, nameNodes } from "./files.js";

const NEAR_BOTTOM_PX = 80;
const WORKING_MS = 7000;
const GIVE_UP_MS = 5000;
const ANSWER = /^\/(approve|deny|answer) /;
const NAMES = { you: "You", parley: "Parley" };

export class MessageList {
  #log = $("#messages");
  #scroller = $("#scroller");
  #jump = $("#jump");
  #welcome = $("#welcome");
  #working = $("#working");
  #preview = $("#preview");
  #previewBody = $("#preview .body");
  #chat = null;
  #items = new Set();
  #said = new Map(); // inbox_seq → the text of the user
  #byRef = new Map(); // id of a person's message → its article
  #offers = []; // answers with buttons
  #taken = new Set(); // inbox_seq of answers that were taken, and are shown by their button
  #pencil = pencilButton(() => this.#edit());
  #pending = new Map();
  #synced = false;
  #stick = true;
  #end = 0; // where the list could be scrolled to when it was last looked at
  #frame = 0;
  #html = null;
  #workingTimer = 0;

  // onDiscard(id): the person gives up an unsent message; onChoose(text): they press a button;
  // onEdit(ref, text): they want to change a message
  constructor({ onDiscard, onChoose, onEdit }) {
    Object.assign(this, { onDiscard, onChoose, onEdit });
    this.#scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    this.#jump.addEventListener("click", () => this.toBottom());
    const observer = new ResizeObserver(() => this.#follow());
    observer.observe(this.#log.parentElement);
    observer.observe(this.#scroller);
  }

  clear(chat, pending) {
    this.#chat = chat;
    this.#items.clear();
    this.#said.clear();
    this.#byRef.clear();
    this.#offers = [];
    this.#taken.clear();
    this.#pencil.remove();
    this.#pending.clear();
    this.#log.replaceChildren();
    this.#log.setAttribute("aria-busy", "true");
    this.#synced = false;
    this.endPreview();
    this.showWorking(false);
    this.showPending(pending);
    this.toBottom();
  }

  synced() {
    this.#synced = true;
    this.#log.removeAttribute("aria-busy");
    this.#refreshWelcome();
  }

  addItem(item) {
    const key = `${item.inbox_seq}-${item.outbox_seq}`;
    if (this.#items.has(key)) return;
    this.#items.add(key);
    if (item.ref && this.#byRef.has(item.ref)) return this.#setText(item.ref, textOf(item), "edited");
    if (item.over) return this.#closeOffers((button) => numberOf(button) === item.over, textOf(item));
    const article = itemArticle(key, item);
    if (item.files) article.append(fileNodes(this.#chat, item.files));
    this.#place(article, [item.inbox_seq, item.outbox_seq]);
    if (item.who === "you") this.#heard(item, article);
    else {
      this.endPreview();
      this.showWorking(false);
    }
    if (item.choices) this.#offer(item, article);
    if (item.taken) this.#taken.add(item.inbox_seq);
    this.#refreshChoices();
    this.#refreshWelcome();
    if (!this.#stick && this.#synced) this.#jump.hidden = false;
  }

  // A question that is over: its buttons are replaced by how it ended.
  close(text, over) {
    this.#closeOffers((button) => button.dataset.text === text, over);
  }

  showPending(messages) {
    const wanted = new Set(messages.map((message) => message.id));
    for (const [id, entry] of this.#pending) {
      if (!wanted.has(id) && entry.state !== "sent") this.#dropPending(id);
    }
    for (const message of messages) {
      if (message.edits) this.#setText(message.edits, message.text, "saving…");
      else if (!this.#pending.has(message.id)) this.#addPending(message);
    }
    this.#refreshChoices();
    this.#refreshWelcome();
  }

  accept(id, seq) {
    const entry = this.#pending.get(id);
    if (!entry) return;
    if (seq !== null && this.#items.has(`${seq}-0`)) return this.#dropPending(id);
    this.#setState(entry, "sent", "");
    entry.seq = seq;
    setTimeout(() => this.#dropPending(id), GIVE_UP_MS);
  }

  // The message will be sent later.
  delay(id, why) {
    const entry = this.#pending.get(id);
    if (entry) this.#setState(entry, "sending", why);
  }

  // An edit was accepted, or its message is gone.
  saved(message, outcome) {
    const known = outcome !== "ignored" && outcome !== "denied";
    this.#setText(message.edits, message.text, known ? "edited" : "Not saved: this message is gone.");
  }

  fail(message) {
    const entry = this.#pending.get(message.id);
    if (entry) this.#setFailed(entry, message);
    this.#refreshChoices();
    if (!message.edits) return;
    this.#setText(message.edits, message.text, `Not saved: ${message.failed}`);
    this.onDiscard(message.id);
  }

  showPreview(html) {
    this.#html = html;
    this.#frame ||= requestAnimationFrame(() => this.#paintPreview());
  }

  endPreview() {
    this.#html = null;
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#preview.hidden = true;
    this.#previewBody.replaceChildren();
  }

  showWorking(on = true) {
    clearTimeout(this.#workingTimer);
    const text = on && this.#preview.hidden ? "Parley is working…" : "";
    if (this.#working.textContent !== text) this.#working.textContent = text;
    if (text) this.#workingTimer = setTimeout(() => this.showWorking(false), WORKING_MS);
  }

  toBottom() {
    this.#stick = true;
    this.#jump.hidden = true;
    this.#follow();
  }

  // New items nearly always belong at the end, so the search starts there.
  #place(article, order) {
    let before = this.#pending.values().next().value?.article ?? null;
    let last = before ? before.previousElementSibling : this.#log.lastElementChild;
    while (last && follows(orderOf(last), order)) {
      before = last;
      last = last.previousElementSibling;
    }
    this.#log.insertBefore(article, before);
  }

  #addPending(message) {
    const article = messageArticle("you");
    article.querySelector(".body").textContent = message.text;
    if (message.files?.length) article.append(nameNodes(message.files));
    const entry = { article, text: message.text, seq: null, state: "" };
    this.#pending.set(message.id, entry);
    if (message.failed) this.#setFailed(entry, message);
    else this.#setState(entry, "sending", "sending…");
    this.#log.append(article);
  }

  #heard(item, article) {
    this.#said.set(item.inbox_seq, article.querySelector(".body").textContent);
    this.#dropPendingFor(item.inbox_seq, article);
    if (!item.ref) return;
    this.#byRef.set(item.ref, article);
    article.dataset.ref = item.ref;
    // The newest message that is not a command can be changed.
    const before = this.#pencil.closest("article");
    const newest = !before || follows(orderOf(article), orderOf(before));
    if (newest && !bodyOf(article).textContent.startsWith("/")) {
      article.querySelector("header").prepend(this.#pencil);
    }
  }

  #edit() {
    const article = this.#pencil.closest("article");
    this.onEdit(article.dataset.ref, bodyOf(article).textContent);
  }

  #setText(ref, text, state) {
    const article = this.#byRef.get(ref);
    if (!article) return;
    bodyOf(article).textContent = text;
    article.querySelector(".state").textContent = state;
  }

  #offer(item, article) {
    const group = element("div", { className: "choices", role: "group", ariaLabel: "Choices" });
    for (const { label, text } of item.choices) {
      const choose = button(label, () => this.onChoose(text));
      choose.dataset.text = text;
      group.append(choose);
    }
    article.append(group);
    this.#offers.push({ seq: item.inbox_seq, group, article });
  }

  // One that was answered with a button shows which.
  #closeOffers(isOf, over) {
    for (const { group } of this.#offers) {
      const isAnswered = over === "answered" && group.querySelector("[aria-pressed=true]");
      if (isAnswered || ![...group.children].some(isOf)) continue;
      group.dataset.over = over;
      group.replaceChildren(`→ ${over}`);
    }
    this.#refreshChoices();
  }

  // A choice is made by the first message behind it that has the text of one of its buttons; an
  // answer to a question of a turn that waits counts where it was taken, and is not shown again.
  #refreshChoices() {
    if (!this.#offers.length) return;
    const said = [...this.#said].sort(([seq], [other]) => seq - other);
    const waiting = [...this.#pending.values()].filter((entry) => entry.state !== "failed");
    for (const { seq, group } of this.#offers) {
      const buttons = [...group.children];
      const counts = ([other, text]) => other > seq && (!ANSWER.test(text) || this.#taken.has(other));
      const texts = said.filter(counts).map(([, text]) => text);
      texts.push(...waiting.map((entry) => entry.text));
      const made = texts.find((text) => buttons.some((button) => button.dataset.text === text));
      for (const button of buttons) {
        button.disabled = made !== undefined;
        button.setAttribute("aria-pressed", String(button.dataset.text === made));
      }
    }
    this.#hideTaken();
  }

  // A press is shown by its button.
  #hideTaken() {
    const pressed = this.#offers.flatMap(({ group }) => [...group.querySelectorAll("[aria-pressed=true]")]);
    const texts = new Set(pressed.map((button) => button.dataset.text));
    for (const { article, text, state } of this.#pending.values()) {
      article.hidden = state !== "failed" && ANSWER.test(text) && texts.has(text);
    }
    for (const article of this.#log.querySelectorAll("article[data-key]")) {
      const [seq] = orderOf(article);
      const shown = this.#taken.has(seq) && texts.has(this.#said.get(seq));
      if (shown && (article.dataset.who === "you" || article.dataset.taken)) article.hidden = true;
    }
  }

  // The item of a message may arrive before the answer to its post, hence the look at the text.
  #dropPendingFor(seq, article) {
    if (!this.#synced) return;
    const text = bodyOf(article).textContent;
    for (const [id, entry] of this.#pending) {
      const same = entry.seq === null ? entry.state !== "failed" && entry.text === text : entry.seq === seq;
      if (same) return this.#dropPending(id);
    }
  }

  #dropPending(id) {
    this.#pending.get(id)?.article.remove();
    this.#pending.delete(id);
    this.#refreshWelcome();
  }

  #setState(entry, state, label) {
    entry.state = state;
    entry.article.dataset.state = state;
    entry.article.querySelector(".state").textContent = label;
  }

  #setFailed(entry, message) {
    this.#setState(entry, "failed", `Not sent: ${message.failed} `);
    const discard = button("Remove", () => {
      this.onDiscard(message.id);
      this.#dropPending(message.id);
    });
    entry.article.querySelector(".state").append(discard);
  }

  #paintPreview() {
    this.#frame = 0;
    if (this.#html === null) return;
    this.#previewBody.replaceChildren(answerNodes(this.#html));
    this.#preview.hidden = false;
    this.showWorking(false);
  }

  #refreshWelcome() {
    this.#welcome.hidden = !this.#synced || this.#items.size + this.#pending.size > 0;
  }

  // If the end has moved since, the user has not scrolled away from it; #follow comes next.
  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (scrollHeight - clientHeight !== this.#end) return;
    this.#stick = this.#end - scrollTop < NEAR_BOTTOM_PX;
    if (this.#stick) this.#jump.hidden = true;
  }

  #follow() {
    this.#end = this.#scroller.scrollHeight - this.#scroller.clientHeight;
    if (this.#stick) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

function follows([inbox, outbox], [otherInbox, otherOutbox]) {
  return inbox > otherInbox || (inbox === otherInbox && outbox > otherOutbox);
}

function orderOf(article) {
  return article.dataset.key.split("-").map(Number);
}

function textOf(item) {
  return element("div", {}, answerNodes(item.html)).textContent.trim();
}

function numberOf(button) {
  const text = button.dataset.text ?? "";
  return ANSWER.test(text) ? Number(text.split(" ")[1]) : NaN;
}

function bodyOf(article) {
  return article.querySelector(".body");
}

function pencilButton(onClick) {
  const title = "Edit this message";
  const pencil = button("", onClick, { className: "pencil", ariaLabel: title, title });
  pencil.innerHTML =
    '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M4 16l.8-3.6L13 4.2l2.8 2.8-8.2 8.2z"/></svg>';
  return pencil;
}

function itemArticle(key, item) {
  const article = messageArticle(item.who);
  article.dataset.key = key;
  if (item.taken) article.dataset.taken = "yes";
  const time = article.querySelector("time");
  const at = new Date(item.at);
  time.dateTime = item.at;
  time.textContent = clock(at);
  time.title = at.toLocaleString();
  article.querySelector(".body").append(answerNodes(item.html));
  return article;
}

function messageArticle(who) {
  const name = element("span", { className: who === "you" ? "unseen" : "who" }, NAMES[who]);
  const header = element("header", {}, name, element("time"), element("span", { className: "state" }));
  const body = element("div", { className: who === "you" ? "body" : "body answer" });
  const article = element("article", { className: "message" }, header, body);
  article.dataset.who = who;
  return article;
}

function clock(at) {
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}
