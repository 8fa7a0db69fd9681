// Parley's web chat: opens the chat that the address names and connects the parts of the page.

import { Account } from "./account.js";
import { ApiError, listChats } from "./api.js";
import { Composer } from "./composer.js";
import { $, element } from "./dom.js";
import { MessageList } from "./messages.js";
import { Outbox } from "./outbox.js";
import { load, newId, save } from "./storage.js";
import { Stream } from "./stream.js";

const STATES = {
  connecting: "Connecting…",
  open: "Connected",
  reconnecting: "Reconnecting…",
  closed: "Paused: too many windows are open",
  out: "Not signed in",
};
const narrow = matchMedia("(max-width: 48rem)");

let chat = null;
let chats = [];
let titleTimer = 0;
let refreshTimer = 0;

const list = new MessageList({
  onDiscard: (id) => outbox.discard(id),
  onChoose: (text) => send(text),
  onEdit: (ref, text) => composer.edit(ref, text),
});
const outbox = new Outbox({
  onAccepted: (message, admission) => {
    if (message.chat !== chat) return;
    if (message.edits) list.saved(message, admission.outcome);
    list.accept(message.id, admission.seq);
    if (admission.over) list.close(message.text, admission.over);
  },
  onDelayed: (message, { message: why, waitMs }) => list.delay(message.id, `${why} Trying again in ${waitMs / 1000} s.`),
  onFailed: (message) => list.fail(message),
  onLoginNeeded: () => account.ask(),
  onChanged: () => list.showPending(outbox.of(chat)),
});
const stream = new Stream({ onEvent: take, onState: showConnection, onBreak: refreshChats });
const composer = new Composer({ onSend: send });
const account = new Account({
  onProving: () => (outbox.paused = true),
  onSignedIn: goOn,
  onAsked: stopForNow,
});

addEventListener("hashchange", openFromAddress);
$("#new-chat").addEventListener("click", () => (location.hash = newId()));
$("#stop").addEventListener("click", () => send("/stop"));
$("#open-sidebar").addEventListener("click", () => showDrawer(true));
$("#close-sidebar").addEventListener("click", () => showDrawer(false));
$("#backdrop").addEventListener("click", () => showDrawer(false));
$("#sidebar").addEventListener("keydown", (event) => event.key === "Escape" && showDrawer(false));
$("#skip").addEventListener("click", (event) => {
  event.preventDefault();
  composer.focus();
});
for (const button of document.querySelectorAll(".suggestion")) {
  button.addEventListener("click", () => composer.fill(button.textContent));
}
narrow.addEventListener("change", () => showDrawer(false));

showDrawer(false);
openFromAddress();

function openFromAddress() {
  if (account.takesLink()) return;
  const asked = location.hash.slice(1);
  if (/^[A-Za-z0-9_-]{1,64}$/.test(asked)) openChat(asked);
  else location.replace(`#${load("last", null) ?? newId()}`);
}

function openChat(id) {
  chat = id;
  save("last", id);
  showDrawer(false);
  list.clear(id, outbox.of(id));
  showGauge({ used: null, window: 0 });
  composer.open(id);
  stream.open(id);
  showChats();
  refreshChats();
  outbox.flush();
  if (!narrow.matches) composer.focus();
}

function send(text, options) {
  outbox.add(chat, text, options);
  list.showPending(outbox.of(chat));
  list.toBottom();
}

function take(name, data) {
  if (name === "item") list.addItem(data);
  else if (name === "preview") list.showPreview(data.html);
  else if (name === "preview_end") list.endPreview();
  else if (name === "working") list.showWorking();
  else if (name === "gauge") showGauge(data);
  else list.synced();
  if (name === "item" || name === "synced") showTitle();
}

function showConnection(state) {
  $("#connection").dataset.state = state;
  $("#connection span").textContent = STATES[state];
  if (state !== "open") return;
  list.endPreview();
  outbox.flush();
}

// Many items arrive together when a chat is opened; one look at the list is enough.
function showTitle() {
  clearTimeout(titleTimer);
  titleTimer = setTimeout(refreshChats, 150);
}

async function refreshChats() {
  clearTimeout(refreshTimer);
  try {
    const answer = await listChats();
    chats = answer.chats;
    composer.maxFileBytes = answer.max_file_bytes;
    composer.commands = answer.commands;
    account.show(answer.you);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) account.ask();
    else if (error.waitMs) refreshTimer = setTimeout(refreshChats, error.waitMs);
    return;
  }
  showChats();
}

function showChats() {
  const known = chats.some((other) => other.chat === chat);
  const fresh = { chat, title: "New chat", updated_at: null };
  const shown = known ? chats : [fresh, ...chats];
  updateItems($("#chats"), shown.map(chatLink));
  const title = shown.find((other) => other.chat === chat).title || "New chat";
  $("#title").textContent = title;
  document.title = known ? `${title} – Parley` : "Parley";
}

// What is the same stays: a link that is replaced while it is pressed takes no click.
function updateItems(list, items) {
  items.forEach((item, place) => {
    const old = list.children[place];
    if (!old) list.append(item);
    else if (!old.isEqualNode(item)) old.replaceWith(item);
  });
  while (list.children.length > items.length) list.lastElementChild.remove();
}

function chatLink(summary) {
  const link = element("a", { href: `#${summary.chat}`, onclick: () => showDrawer(false) });
  if (summary.chat === chat) link.setAttribute("aria-current", "page");
  link.append(element("span", {}, summary.title || "New chat"));
  if (summary.updated_at) link.append(shortTime(summary.updated_at));
  return element("li", {}, link);
}

function shortTime(iso) {
  const at = new Date(iso);
  const today = at.toDateString() === new Date().toDateString();
  const text = today
    ? at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : at.toLocaleDateString([], { day: "numeric", month: "short" });
  return element("time", { dateTime: iso }, text);
}

// Each browser draws <meter> in its own way: it is for screen readers, the bar next to it for the eye.
function showGauge({ used, window: size }) {
  $("#gauge").hidden = size === 0;
  if (size === 0) return;
  const share = Math.min((used ?? 0) / size, 1);
  $("#gauge-meter").value = share;
  $("#gauge-bar").style.width = `${share * 100}%`;
  $("#gauge-bar").dataset.level = share >= 0.85 ? "full" : share >= 0.5 ? "half" : "";
  $("#gauge-text").textContent = `${percent(share)} of ${short(size)}`;
}

function percent(share) {
  return share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;
}

function short(tokens) {
  return tokens >= 1e6 ? `${+(tokens / 1e6).toFixed(1)}M` : `${Math.round(tokens / 1000)}k`;
}

function showDrawer(open) {
  const shown = open && narrow.matches;
  const had = document.body.classList.contains("drawer");
  document.body.classList.toggle("drawer", shown);
  $("#backdrop").hidden = !shown;
  $("#main").inert = shown;
  $("#sidebar").inert = narrow.matches && !shown;
  $("#open-sidebar").setAttribute("aria-expanded", String(shown));
  if (shown) $("#new-chat").focus();
  else if (had) $("#open-sidebar").focus();
}

// The user is not signed in.
function stopForNow() {
  outbox.paused = false;
  stream.pause();
  showConnection("out");
}

// The user has just signed in.
function goOn() {
  outbox.paused = false;
  if (chat === null) return openFromAddress();
  history.replaceState(null, "", `#${chat}`);
  stream.resume();
  refreshChats();
  outbox.flush();
}
