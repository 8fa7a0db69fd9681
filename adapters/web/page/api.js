// Requests to Parley. Every failure is an ApiError; `retry` says whether the same request may help.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    this.retry = status === 0 || status === 408 || status === 429 || status >= 500;
  }
}

export async function listChats() {
  return (await request("GET", "/api/chats")).chats;
}

export function postMessage({ chat, id, text }) {
  return request("POST", `/api/chats/${chat}/messages`, { id, text });
}

export function logIn(token) {
  return request("POST", "/api/login", { token });
}

async function request(method, path, body) {
  const response = await reach(path, {
    method,
    headers: body ? { "Content-Type": "application/json", "X-Parley": "1" } : {},
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(30_000),
  });
  const data = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, data?.message ?? response.statusText);
  return data;
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new ApiError(0, "Parley cannot be reached.");
  }
}
