// Files of messages that are not sent yet. They survive a reload like the texts they belong to,
// where the browser can store them.

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
  const list = document.createElement("ul");
  list.className = "files";
  list.append(...files.map((file) => fileNode(`/api/chats/${chat}/files/${file.id}`, file)));
  return list;
}

function fileNode(address, file) {
  const link = document.createElement("a");
  link.href = address;
  if (file.picture) {
    const picture = document.createElement("img");
    Object.assign(picture, { src: address, alt: file.name, loading: "lazy" });
    let pauseMs = FIRST_PAUSE_MS;
    // Parley may be busy with other files.
    picture.addEventListener("error", () => {
      if (pauseMs <= LONGEST_PAUSE_MS) setTimeout(() => (picture.src = address), pauseMs);
      pauseMs *= 2;
    });
    link.target = "_blank";
    link.append(picture);
  } else {
    link.className = "file";
    link.download = file.name;
    link.append(file.name, small(sizeText(file.size)));
  }
  return listItem(link);
}

// The files of a message on its way: their names are all there is to see.
export function nameNodes(names) {
  const list = document.createElement("ul");
  list.className = "files";
  for (const name of names) {
    const label = document.createElement("span");
    label.className = "file";
    label.textContent = name;
    list.append(listItem(label));
  }
  return list;
}

export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 999_500 ? `${Math.round(bytes / 1000)} KB` : `${+(bytes / 1e6).toFixed(1)} MB`;
}

export function small(text) {
  const element = document.createElement("small");
  element.textContent = text;
  return element;
}

function listItem(content) {
  const item = document.createElement("li");
  item.append(content);
  return item;
}
