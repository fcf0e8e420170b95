// What the screens ask the studio. The token, where there is one, comes behind the # of the address and is kept for
// this tab alone; it is sent as a header, never as part of an address.

const KEPT = "flare-token";

export class ApiError extends Error {
  constructor(status, field, message) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

export function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token === null) return;
  sessionStorage.setItem(KEPT, token);
  history.replaceState(null, "", "#/cell");
}

function headers(more = {}) {
  const token = sessionStorage.getItem(KEPT);
  return token === null ? more : { ...more, Authorization: `Bearer ${token}` };
}

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "", "The studio does not answer. Was it ended? Start it again: flare studio");
  }
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // no JSON: the status has to do
  }
  throw new ApiError(response.status, told.field ?? "", told.message ?? `The studio answered ${response.status}.`);
}

export async function get(path, { signal } = {}) {
  return (await asked(path, { headers: headers(), signal })).json();
}

export async function post(path, body, { signal } = {}) {
  const json = { "Content-Type": "application/json" };
  return (await asked(path, { method: "POST", headers: headers(json), body: JSON.stringify(body), signal })).json();
}

/** Server-sent events: `onMessage` gets each one's data, read as JSON. Returns a function that ends it. A broken
 *  connection is made again after a while; `onState` is told "open", "lost", and "refused" with the studio's reason,
 *  after which it is over. */
export function events(path, onMessage, onState = () => {}) {
  const ending = new AbortController();
  follow(path, onMessage, onState, ending.signal);
  return () => ending.abort();
}

async function follow(path, onMessage, onState, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(2 * wait, 8000)) {
    try {
      const response = await asked(path, { headers: headers({ Accept: "text/event-stream" }), signal });
      onState("open");
      wait = 500;
      await readEvents(response.body.getReader(), onMessage);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) return onState("refused", error.message);
    }
    onState("lost");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function readEvents(reader, onMessage) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) onMessage(JSON.parse(data.join("\n")));
    }
  }
}
