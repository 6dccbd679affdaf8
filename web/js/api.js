// The server's HTTP interface: requests, streams of events, errors, the key.

const KEY = "lapidary.key"; // of the session's storage: it ends with the tab

export class ServerError extends Error {
  constructor(status, code, message, param) {
    super(message);
    this.status = status; // 0: no answer
    this.code = code;
    this.param = param;
  }
  static of(status, body) {
    const error = body?.error ?? {};
    const message = typeof error.message === "string" ? error.message : `the server answered with status ${status}`;
    return new ServerError(status, error.code ?? "", message, error.param ?? "");
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

async function ask(path, body, signal) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "unreachable", "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  let parsed = null;
  try {
    parsed = await answer.json();
  } catch {
    // an error without a body that explains it: the status says what there is to say
  }
  throw ServerError.of(answer.status, parsed);
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function post(path, body = {}) {
  return (await ask(path, body)).json();
}

// Texts of the events of a stream, in order.
async function* events(stream) {
  const decoder = new TextDecoder();
  const reader = stream.getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The chunks of a streamed completion. ServerError when it is refused, fails on the way or ends too early.
export async function* stream(path, body, signal) {
  const answer = await ask(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  try {
    for await (const text of events(answer.body)) {
      if (text === "[DONE]") return;
      const chunk = JSON.parse(text);
      if (chunk.error) throw ServerError.of(chunk.error.status ?? 500, chunk);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError(0, "connection_lost", "The connection was lost while the answer came.");
  }
  throw new ServerError(0, "connection_lost", "The connection ended before the answer was complete.");
}
