// Calls of the console's own API, relative to the page.

/** Operator of this session: `{ name, may }`, once the first reply has told it. */
export const session = { operator: null };

/** Returns true if the operator has this permission or a higher one. */
export function may(permission) {
  const order = ["look", "act", "see-payloads"];
  return order.indexOf(session.operator?.may) >= order.indexOf(permission);
}

async function reply(response) {
  const document = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(document.title ?? `The server answered ${response.status}`);
  return document;
}

/** Reads a resource of the API. */
export async function read(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const query = new URLSearchParams(given).toString();
  return reply(await fetch(`api/${name}${query ? `?${query}` : ""}`, { cache: "no-store" }));
}

/** Performs an action, or a look that is recorded or costly: other pages cannot send it. */
export async function act(action) {
  return reply(await fetch("api/actions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(action),
  }));
}

/** What a snapshot may lack: the store does not answer, or the service has nothing of the kind. */
const EMPTY_SNAPSHOT = {
  jobs: { pending: 0, running: 0, dead: 0, workers: 0, paused: false },
  queues: [], holds: [], waits: [], policies: [], processes: [], stats: {},
};

/**
 * Calls `show` with every snapshot: one event stream, or a poll each two seconds where streams do
 * not pass.
 */
export function follow(show, tellState) {
  let timer = null;
  const poll = async () => {
    try {
      show({ ...EMPTY_SNAPSHOT, ...await read("snapshot") });
      tellState("polling");
    } catch (error) {
      tellState(`no answer: ${error.message}`);
    }
  };
  const source = new EventSource("api/events");
  source.onmessage = (event) => {
    clearInterval(timer);
    timer = null;
    show({ ...EMPTY_SNAPSHOT, ...JSON.parse(event.data) });
    tellState("live");
  };
  source.onerror = () => {
    if (timer === null) timer = setInterval(poll, 2000);
  };
}
