// What the pages ask the server for.

let lab = null;

export class ServerError extends Error {}

async function read(response) {
  const content = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServerError(content.error || content.detail || `the server answered ${response.status}`);
  return content;
}

export function address(path, values = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== null) query.append(key, one);
  }
  return query.size ? `${path}?${query}` : path;
}

export const get = async (path, values) => read(await fetch(address(path, values)));

export async function post(path, content) {
  const headers = { "Content-Type": "application/json", "X-SLM-Lab-CSRF": (await getLab()).csrf };
  return read(await fetch(path, { method: "POST", headers, body: JSON.stringify(content) }));
}

export async function getLab() {
  lab = lab || await get("/api/lab");
  return lab;
}

// Events of the server, from a stream that is opened again when it breaks. `onState` is called with whether it is open.
export class Events {
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    this.source = null;
  }

  watch(ids) {
    if (this.source) this.source.close();
    this.source = new EventSource(address("/api/events", { watch: ids }));
    this.source.onopen = () => this.onState(true);
    this.source.onerror = () => this.onState(false);
    this.source.onmessage = (message) => this.onEvent(JSON.parse(message.data));
  }
}
