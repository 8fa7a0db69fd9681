// The event stream of the open chat. After a break it goes on where it was; a hidden page gives its
// connection back, because browsers allow only six to one server. Of too many pages the oldest
// is closed: it waits until it is used, since two pages could otherwise close each other forever.

const LONGEST_PAUSE_MS = 5000;
const EVENTS = ["item", "preview", "preview_end", "working", "gauge", "synced", "closed"];

export class Stream {
  #source = null;
  #timer = 0;
  #pause = 0;
  #chat = null;
  #position = "0-0";
  #closed = false;

  // onEvent(name, data), onState("connecting" | "open" | "reconnecting" | "closed"), onBreak() before a retry
  constructor({ onEvent, onState, onBreak }) {
    Object.assign(this, { onEvent, onState, onBreak });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    addEventListener("online", () => this.#closed || this.resume());
    for (const use of ["focus", "pointerdown", "keydown"]) addEventListener(use, () => this.#closed && this.resume());
  }

  open(chat) {
    this.pause();
    this.#chat = chat;
    this.#position = "0-0";
    this.onState("connecting");
    this.#connect();
  }

  resume() {
    this.#pause = 0;
    if (this.#chat && this.#source?.readyState !== EventSource.OPEN) this.#connect();
  }

  pause() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #connect() {
    this.pause();
    this.#closed = false;
    if (document.hidden) return;
    const [inbox, outbox] = this.#position.split("-");
    const source = new EventSource(`/api/chats/${this.#chat}/events?inbox=${inbox}&outbox=${outbox}`);
    this.#source = source;
    source.onopen = () => this.onState("open");
    source.onerror = () => this.#retry();
    for (const name of EVENTS) source.addEventListener(name, (event) => this.#take(name, event));
  }

  #take(name, event) {
    this.#pause = 0;
    if (name === "closed") return this.#close();
    if (event.lastEventId) this.#position = event.lastEventId;
    this.onEvent(name, JSON.parse(event.data));
  }

  #close() {
    this.pause();
    this.#closed = true;
    this.onState("closed");
  }

  #retry() {
    this.pause();
    this.onState("reconnecting");
    this.onBreak();
    this.#pause = Math.min(this.#pause * 2 || 300, LONGEST_PAUSE_MS);
    this.#timer = setTimeout(() => this.#connect(), this.#pause);
  }
}
