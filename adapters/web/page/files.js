// Files of messages that are not sent yet. They survive a reload like the texts they belong to,
// where the browser can store them.

import { element } from "./dom.js";

const FIRST_PAUSE_MS = 5000;
const LONGEST_PAUSE_MS = 80_000;
const held = new Map();

export function hold(id, files) {
  held.set(id, files);
  inStore("readwrite", (store) => store.put(files, id)).catch(() => {});
}

// null where they are gone: the browser could not store them, and the page was reloaded.
export async function heldFiles(id) {
  if (!held.has(id)) held.set(id, (await inStore("readonly", (store) => store.get(id)).catch(() => null)) ?? null);
  return held.get(id);
}

export function letGo(id) {
  held.delete(id);
  inStore("readwrite", (store) => store.delete(id)).catch(() => {});
}

function inStore(mode, act) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("parley", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("files");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const transaction = database.transaction("files", mode);
      const request = act(transaction.objectStore("files"));
      transaction.oncomplete = () => (database.close(), resolve(request.result));
      transaction.onabort = () => (database.close(), reject(transaction.error));
    };
  });
}

// What is shown of a message's files: pictures, and links to keep the others.
export function fileNodes(chat, files) {
  return listOf(files.map((file) => fileNode(`/api/chats/${chat}/files/${file.id}`, file)));
}

function fileNode(address, file) {
  if (!file.picture) {
    const size = element("small", {}, sizeText(file.size));
    return element("a", { href: address, className: "file", download: file.name }, file.name, size);
  }
  const picture = element("img", { src: address, alt: file.name, loading: "lazy" });
  let pauseMs = FIRST_PAUSE_MS;
  // Parley may be busy with other files.
  picture.addEventListener("error", () => {
    if (pauseMs <= LONGEST_PAUSE_MS) setTimeout(() => (picture.src = address), pauseMs);
    pauseMs *= 2;
  });
  return element("a", { href: address, target: "_blank" }, picture);
}

// The files of a message on its way: their names are all there is to see.
export function nameNodes(names) {
  return listOf(names.map((name) => element("span", { className: "file" }, name)));
}

function listOf(nodes) {
  return element("ul", { className: "files" }, ...nodes.map((node) => element("li", {}, node)));
}

export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 999_500 ? `${Math.round(bytes / 1000)} KB` : `${+(bytes / 1e6).toFixed(1)} MB`;
}
