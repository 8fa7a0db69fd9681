// Requests to Parley. Every failure is an ApiError; `retry` says whether the client may repeat the
// request, `waitMs` when (0: Parley names no time).

export class ApiError extends Error {
  constructor(status, message, code = "", data = {}, waitSeconds = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.data = data;
    this.waitMs = waitSeconds * 1000;
    this.retry = status === 0 || status === 408 || status === 429 || status >= 500;
  }
}

// {chats, you, max_file_bytes, commands}
export function listChats() {
  return request("GET", "/api/chats");
}

export function postMessage({ chat, id, text, edits }, files) {
  const path = `/api/chats/${chat}/messages`;
  if (!files.length) return request("POST", path, { id, text, edits });
  const form = new FormData();
  form.append("id", id);
  form.append("text", text);
  for (const file of files) form.append("file", file, file.name);
  return request("POST", path, form);
}

// `proof` is {link} or {token}; `instead_of` names the user whom a link for another user may sign out.
export function signIn(proof) {
  return request("POST", "/api/sign-in", proof);
}

// {provider}: the host of the identity provider, or null.
export function waysIn() {
  return request("GET", "/api/sign-in");
}

// Returns {url}: the provider's sign-in page.
export function goToProvider() {
  return request("POST", "/api/sign-in/oidc", {});
}

// {name, role, has_session}
export function whoAmI() {
  return request("GET", "/api/me");
}

export function signOut() {
  return request("POST", "/logout", {});
}

async function request(method, path, body) {
  const form = body instanceof FormData;
  const type = form ? {} : { "Content-Type": "application/json" };
  const response = await reach(path, {
    method,
    headers: body ? { ...type, "X-Parley": "1" } : {},
    body: form ? body : body && JSON.stringify(body),
    signal: AbortSignal.timeout(form ? 600_000 : 30_000),
  });
  const data = await response.json().catch(() => null);
  if (!response.ok) {
    const wait = Number(response.headers.get("Retry-After"));
    throw new ApiError(response.status, data?.message ?? response.statusText, data?.error, data ?? {}, wait);
  }
  // Cut off on its way: as good as no answer.
  if (data === null && response.status !== 204) throw new ApiError(0, "Parley cannot be reached.");
  return data;
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new ApiError(0, "Parley cannot be reached.");
  }
}
