// What must survive a reload: drafts, unsent messages, the chat that was open. A browser that
// refuses to store (private mode, full) still works, until it is closed.

const fallback = new Map();

export function load(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`parley.${key}`)) ?? fallback.get(key) ?? otherwise;
  } catch {
    return fallback.get(key) ?? otherwise;
  }
}

export function save(key, value) {
  try {
    fallback.delete(key);
    localStorage.setItem(`parley.${key}`, JSON.stringify(value));
  } catch {
    fallback.set(key, value);
  }
}

export function remove(key) {
  fallback.delete(key);
  try {
    localStorage.removeItem(`parley.${key}`);
  } catch {
    // Nothing can be stored here, so nothing is left behind.
  }
}

export function removeAll() {
  fallback.clear();
  indexedDB.deleteDatabase("parley");
  try {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith("parley."));
    for (const key of keys) localStorage.removeItem(key);
  } catch {
    // Nothing can be stored here, so nothing is left behind.
  }
}

// What one tab needs until it has been somewhere else: also at an identity provider.
export function saveForTab(key, text) {
  try {
    sessionStorage.setItem(`parley.${key}`, text);
  } catch {
    fallback.set(key, text);
  }
}

export function takeForTab(key) {
  let text = fallback.get(key) ?? null;
  fallback.delete(key);
  try {
    text ??= sessionStorage.getItem(`parley.${key}`);
    sessionStorage.removeItem(`parley.${key}`);
  } catch {
    // Nothing can be stored here.
  }
  return text;
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
