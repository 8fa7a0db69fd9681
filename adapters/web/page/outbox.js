// Messages that Parley has not confirmed yet. Each keeps its id until it is: however often it is
// posted, it is taken once. They go out one after another, so that their order is kept.

import { ApiError, postMessage } from "./api.js";
import { heldFiles, hold, letGo } from "./files.js";
import { load, newId, save } from "./storage.js";

const KEY = "outbox";
const LONGEST_PAUSE_MS = 8000;

export class Outbox {
  // While a user signs in nothing goes out: it may be another user now.
  paused = false;
  #running = false;
  #wake = () => {};

  // onAccepted(message, {outcome, seq}), onDelayed(message, error), onFailed(message), onLoginNeeded(), onChanged()
  constructor({ onAccepted, onDelayed, onFailed, onLoginNeeded, onChanged }) {
    Object.assign(this, { onAccepted, onDelayed, onFailed, onLoginNeeded });
    addEventListener("storage", (event) => event.key === `parley.${KEY}` && onChanged());
  }

  of(chat) {
    return load(KEY, []).filter((message) => message.chat === chat);
  }

  // `edits` is the id of the message that this one changes, if it does.
  add(chat, text, { files = [], edits } = {}) {
    const message = { id: newId(), chat, text, edits, files: files.map((file) => file.name) };
    if (files.length) hold(message.id, files);
    save(KEY, [...load(KEY, []), message]);
    this.flush();
    return message;
  }

  discard(id) {
    letGo(id);
    save(
      KEY,
      load(KEY, []).filter((message) => message.id !== id),
    );
  }

  async flush() {
    this.#wake();
    if (this.#running) return;
    this.#running = true;
    try {
      await this.#sendAll();
    } finally {
      this.#running = false;
    }
  }

  async #sendAll() {
    let pause = 0;
    for (let next; !this.paused && (next = load(KEY, []).find((message) => !message.failed)); ) {
      try {
        const files = next.files?.length ? await heldFiles(next.id) : [];
        if (this.paused) return;
        if (!files) throw new ApiError(400, "its files are gone; please add them again.");
        const admission = await postMessage(next, files);
        pause = 0;
        this.discard(next.id);
        this.onAccepted(next, admission);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (error.status === 401) return this.onLoginNeeded();
        if (!error.retry) {
          this.#fail(next, error.message);
          continue;
        }
        pause = Math.min(pause * 2 || 500, LONGEST_PAUSE_MS);
        if (error.waitMs) this.onDelayed(next, error);
        await this.#rest(error.waitMs || pause);
      }
    }
  }

  #fail(message, reason) {
    const failed = { ...message, failed: reason };
    save(
      KEY,
      load(KEY, []).map((other) => (other.id === message.id ? failed : other)),
    );
    this.onFailed(failed);
  }

  #rest(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => (clearTimeout(timer), resolve());
    });
  }
}
