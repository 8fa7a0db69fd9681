// Signing in by a link or the form, the user who is signed in, and signing out.

import { ApiError, goToProvider, signIn, signOut, waysIn, whoAmI } from "./api.js";
import { $ } from "./dom.js";
import { load, removeAll, save, saveForTab, takeForTab } from "./storage.js";

// The pages to which a sign-in may lead back: those of the console.
const CONSOLE = /^\/admin(?=[/?]|$)/;
const LINK = /^#sign-in=([A-Za-z0-9_-]+)$/;

export class Account {
  // onProving() before a proof is sent, onSignedIn() after it, onAsked() when the user must sign in
  constructor({ onProving, onSignedIn, onAsked }) {
    Object.assign(this, { onProving, onSignedIn, onAsked });
    $("#sign-in form").addEventListener("submit", (event) => this.#submit(event));
    $("#sign-in").addEventListener("cancel", (event) => event.preventDefault());
    $("#provider").addEventListener("click", () => this.#leadOut());
    $("#sign-out").addEventListener("click", () => this.#leave());
    const next = new URLSearchParams(location.search).get("next");
    if (CONSOLE.test(next ?? "")) saveForTab("next", next);
  }

  // Whether the address is a sign-in link. Its secret leaves the address and the history at once.
  takesLink() {
    const found = LINK.exec(location.hash);
    if (!found) return false;
    history.replaceState(null, "", location.pathname);
    this.#prove({ link: found[1] });
    return true;
  }

  ask(message = "") {
    this.onAsked();
    $("#account").hidden = true;
    const open = $("#sign-in").open;
    // The message about the last try stays when a request that was on its way fails.
    if (message || !open) $("#sign-in-error").textContent = message;
    if (open) return;
    $("#sign-in").showModal();
    this.#offerProvider();
  }

  async #offerProvider() {
    const { provider } = await waysIn().catch((error) => {
      if (!(error instanceof ApiError)) throw error;
      return { provider: null };
    });
    if (provider === null) return;
    $("#provider b").textContent = provider;
    $("#provider").hidden = $("#other-ways summary").hidden = false;
    $("#other-ways").open = false;
    $("#provider").focus();
  }

  async #leadOut() {
    try {
      location.assign((await goToProvider()).url);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      $("#sign-in-error").textContent = error.message;
    }
  }

  // Returns false if another page follows. For another user the page starts over: unsent messages of
  // one user must not be sent by the next one in this browser.
  show({ name, role, has_session, console }) {
    if (load("user", name) !== name) {
      this.#start(name);
      return false;
    }
    save("user", name);
    $("#who").textContent = name === role ? name : `${name} (${role})`;
    $("#sign-out").hidden = !has_session;
    $("#console").hidden = !console;
    $("#account").hidden = false;
    const next = takeForTab("next");
    if (next !== null) location.replace(next);
    return next === null;
  }

  async #submit(event) {
    event.preventDefault();
    if (await this.#prove({ token: $("#token").value })) $("#token").value = "";
  }

  async #prove(proof) {
    this.onProving();
    $("#sign-in-error").textContent = "";
    let visitor;
    try {
      await signIn(proof);
      visitor = await whoAmI();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const { name, link_for } = error.data;
      if (error.code === "signed_in_already" && (await agrees(error.message, name, link_for)))
        return this.#prove({ ...proof, instead_of: name });
      visitor = proof.link ? await this.#signedInBefore() : null;
      if (visitor === null) {
        this.ask(error.message);
        return false;
      }
    }
    if ($("#sign-in").open) $("#sign-in").close();
    if (this.show(visitor)) this.onSignedIn();
    return true;
  }

  // A link that is opened a second time has signed in its user the first time.
  async #signedInBefore() {
    try {
      return await whoAmI();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return null;
    }
  }

  async #leave() {
    try {
      await signOut();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      $("#sign-out").textContent = "Try again";
      return;
    }
    this.#start(null);
  }

  #start(name) {
    removeAll();
    if (name !== null) save("user", name);
    location.replace(location.pathname);
  }
}

// Asks before a link replaces the signed-in user: another person may have sent it.
function agrees(message, name, other) {
  const dialog = $("#other-user");
  dialog.querySelector("b").textContent = other;
  dialog.querySelector("p").textContent = message;
  dialog.querySelector("[value=stay]").textContent = `Stay ${name}`;
  dialog.querySelector("[value=change]").textContent = `Sign out ${name}, sign in as ${other}`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "change"), { once: true });
  });
}
