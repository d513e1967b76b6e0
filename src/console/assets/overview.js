// Overview: is anything wrong, and where?
import { card, duration, element, table } from "./dom.js";
import { actionButton } from "./actions.js";
import { chart, points } from "./history.js";

export const title = "Overview";

export function open(main) {
  const body = element("div");
  main.append(body);
  return { show: (snapshot) => body.replaceChildren(...content(snapshot)) };
}

function content(snapshot) {
  const { jobs, queues, holds, processes, policies } = snapshot;
  const dead = jobs.dead + queues.reduce((sum, queue) => sum + queue.dead_letters, 0);
  const due = queues.reduce((sum, queue) => sum + queue.due, 0);
  const oldest = Math.max(0, ...queues.map((queue) => queue.oldest_due_ms ?? 0));
  const refused = policies.reduce((sum, policy) => sum + policy.refused, 0);
  const nobodyWorks = jobs.pending > 0 && jobs.workers === 0;
  return [
    element("dl", { class: "cards" },
      card("Store", snapshot.store.available ? "available" : "unavailable", snapshot.store.error,
        snapshot.store.available ? "good" : "bad"),
      card("Deferred requests", jobs.pending, jobs.paused ? "paused" : `${jobs.running} running`, jobs.paused ? "warn" : null),
      card("Tasks due", due, oldest ? `oldest for ${duration(oldest)}` : null, oldest > 300_000 ? "warn" : null),
      card("Dead letters", dead, null, dead ? "bad" : "good"),
      card("Locks held", snapshot.stats.locks_held, `${snapshot.stats.lock_waiters} waiters`),
      card("Refused", refused, "since the processes started"),
      card("Processes", processes.length, nobodyWorks ? "no worker for deferred requests" : `${jobs.workers} with workers`, nobodyWorks ? "bad" : null)),
    element("p", {}, jobs.paused
      ? actionButton("Resume deferred requests", { title: "Resume deferred requests", danger: false, action: () => ({ action: "resume-jobs" }) })
      : actionButton("Pause deferred requests", { title: "Pause deferred requests", text: "Nothing deferred starts until they are resumed. What runs goes on.", action: () => ({ action: "pause-jobs" }) })),
    chart("Deferred requests that wait or run", points("jobs")),
    element("h3", {}, "Longest holds"),
    table("Longest holds", [
      ["Lock", (hold) => element("a", { href: `#locks?key=${encodeURIComponent(hold.lock)}` }, hold.lock)],
      ["Held for", (hold) => duration(hold.held_ms), true],
      ["By", (hold) => `${hold.host} (${hold.pid})`],
      ["Waiters", (hold) => String(hold.waiters), true],
    ], holds.slice(0, 5), "No lock is held."),
  ];
}
