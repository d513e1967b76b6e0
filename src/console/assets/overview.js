// Overview: is anything wrong, and where?
import { card, duration, element, table } from "./dom.js";
import { actionButton } from "./actions.js";
import { chart, points } from "./history.js";
import { waitTable } from "./locks.js";

export const title = "Overview";

export function open(main) {
  const body = element("div");
  main.append(body);
  return { show: (snapshot) => body.replaceChildren(...content(snapshot)) };
}

function content({ store, jobs = {}, queues = [], holds = [], waits = [], processes = [], stats = {} }) {
  if (!store.available) return [element("p", { class: "bad" }, `The store does not answer: ${store.error}`)];
  const dead = jobs.dead + queues.reduce((sum, queue) => sum + queue.dead_letters, 0);
  const due = queues.reduce((sum, queue) => sum + queue.due, 0);
  const oldest = Math.max(0, ...queues.map((queue) => queue.oldest_due_ms ?? 0));
  const nobodyWorks = jobs.pending > 0 && jobs.workers === 0;
  return [
    element("dl", { class: "cards" },
      card("Store", "available", null, "good"),
      card("Deferred requests", jobs.pending, jobs.paused ? "paused" : `${jobs.delayed} wait for a time`, jobs.paused ? "warn" : null),
      card("Workers for them", jobs.workers, nobodyWorks ? "nobody runs them" : "live", nobodyWorks ? "bad" : null),
      card("Tasks due", due, oldest ? `oldest for ${duration(oldest)}` : null, oldest > 300_000 ? "warn" : null),
      card("Dead letters", dead, null, dead ? "bad" : "good"),
      card("Locks held", stats.locks_held ?? 0, `${stats.locks_lost ?? 0} lost so far`, stats.locks_lost ? "warn" : null),
      card("Busy", stats.locks_busy ?? 0, "answers since the processes started"),
      card("Refused", stats.refused ?? 0, `${stats.admitted ?? 0} admitted`),
      card("Processes", processes.length, "that answered")),
    element("p", {}, jobs.paused
      ? actionButton("Resume deferred requests", { title: "Resume deferred requests", danger: false, action: () => ({ action: "resume-jobs" }) })
      : actionButton("Pause deferred requests", { title: "Pause deferred requests", text: "Nothing deferred starts until they are resumed. What runs goes on.", action: () => ({ action: "pause-jobs" }) })),
    chart("Deferred requests that wait or run", [points("jobs")]),
    chart("Refusals a second", [points("refused", true)]),
    element("h3", {}, "Longest holds"),
    table("Longest holds", [
      ["Lock", (hold) => element("a", { href: `#locks?key=${encodeURIComponent(hold.lock)}` }, hold.lock)],
      ["Held for", (hold) => duration(hold.held_ms), true],
      ["By", (hold) => `${hold.host} (${hold.pid})`],
      ["Route", (hold) => hold.route],
    ], holds.slice(0, 5), "No lock is held."),
    element("h3", {}, "Longest waits"), waitTable(waits.slice(0, 5)),
  ];
}
