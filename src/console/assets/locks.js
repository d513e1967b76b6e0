// Locks: the longest holds of the fleet, and everything about one lock.
import { chartWidth, duration, element, field, svgElement, table } from "./dom.js";
import { read } from "./api.js";
import { actionButton, button } from "./actions.js";

export const title = "Locks";

export async function open(main, { key }) {
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `locks?key=${encodeURIComponent(new FormData(form).get("key"))}`;
  } }, field("Name of the lock, as in the code", { name: "key", value: key ?? "", required: true, size: "32" }),
  element("button", {}, "Show"));
  const detail = element("section", { "aria-label": "One lock" });
  const fleet = element("section", { "aria-label": "All processes" });
  main.append(form, detail, fleet);
  if (key) await showLock(detail, key);
  return { show: (snapshot) => fleet.replaceChildren(...allLocks(snapshot)) };
}

async function showLock(section, key) {
  const lock = await read("lock", { key });
  const refresh = () => showLock(section, key);
  section.replaceChildren(
    element("h3", {}, key), element("p", {}, lock.sentence),
    table("Holders", [
      ["Mode", (holder) => holder.mode],
      ["Process", (holder) => holder.host ? `${holder.host} (${holder.pid})` : "process has not answered"],
      ["Route", (holder) => holder.route],
      ["State", (holder) => holder.is_offer ? "offered" : holder.is_run ? "runs a deferred request" : "held"],
      ["Held for", (holder) => duration(holder.held_ms), true],
      ["Lease left", (holder) => duration(holder.lease_left_ms), true],
      ["Fence", (holder) => holder.fence === null ? null : String(holder.fence), true],
    ], lock.holders, "Nobody holds this lock."),
    element("h3", {}, "Wait queue"),
    table("Wait queue", [
      ["Process", (waiter) => waiter.host ? `${waiter.host} (${waiter.pid})` : waiter.node],
      ["Mode", (waiter) => waiter.mode],
      ["Waits for", (waiter) => duration(waiter.waited_ms), true],
    ], lock.waiters, "No process is in the queue of the store."),
    element("h3", {}, "Waiting requests"),
    table("Waiting requests", [
      ["Process", (process) => `${process.host} (${process.pid})`],
      ["Waiters", (process) => String(process.waiters), true],
      ["Longest wait", (process) => duration(process.longest_ms), true],
    ], lock.waiting_processes, "No process that answers has one."),
    element("p", {}, `${lock.job_count} deferred requests of this lock. `, ...lock.jobs.slice(0, 20).map((id) =>
      element("a", { href: `#jobs?id=${id}` }, `${id.slice(0, 10)} `))),
    element("p", {},
      lock.holders.length ? actionButton("Release by force", {
        title: `Release ${key} by force?`,
        text: "The holder is told, and the fence rises. A handler that does not check its fence may still write: two requests may then work on the same thing.",
        fields: [() => field("Type the name of the lock", { name: "typed", required: true, pattern: key.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") })],
        action: () => ({ action: "force-release", lock: key }), done: refresh,
      }) : null,
      " ", button("Refresh", refresh)));
}

/** The longest queues of all processes. */
export function waitTable(waits) {
  return table("Longest waits", [
    ["Lock", (wait) => element("a", { href: `#locks?key=${encodeURIComponent(wait.lock)}` }, wait.lock)],
    ["Waiters", (wait) => String(wait.waiters), true],
    ["Longest wait", (wait) => duration(wait.longest_ms), true],
  ], waits, "Nobody waits for a lock.");
}

function allLocks({ holds = [], waits = [] }) {
  return [
    element("h3", {}, "Longest waits"), waitTable(waits),
    element("h3", {}, "Longest holds"), timeline(holds.slice(0, 12)),
    table("Longest holds", [
      ["Lock", (hold) => element("a", { href: `#locks?key=${encodeURIComponent(hold.lock)}` }, hold.lock)],
      ["Process", (hold) => `${hold.host} (${hold.pid})`],
      ["Route", (hold) => hold.route],
      ["Mode", (hold) => hold.mode],
      ["Held for", (hold) => duration(hold.held_ms), true],
      ["Lease left", (hold) => duration(hold.lease_left_ms), true],
      ["Fence", (hold) => String(hold.fence), true],
      ["Run", (hold) => hold.is_run ? "of a deferred request" : null],
    ], holds, "No process holds a lock."),
  ].filter(Boolean);
}

/** Bars of the holds: solid what has passed, dashed what is left of the lease. */
function timeline(holds) {
  if (holds.length === 0) return null;
  const longest = Math.max(...holds.map((hold) => hold.held_ms + (hold.lease_left_ms ?? 0)));
  const width = chartWidth(), start = Math.min(170, width * .35), bar = width - start - 10;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${holds.length * 20 + 4}`, role: "img", "aria-label": "Holds, the longest first" });
  holds.forEach((hold, index) => {
    const y = index * 20 + 4, held = bar * (hold.held_ms / longest), left = bar * ((hold.lease_left_ms ?? 0) / longest);
    const letters = Math.floor(start / 7);
    const name = hold.lock.length > letters ? `${hold.lock.slice(0, letters - 1)}…` : hold.lock;
    svg.append(svgElement("text", { x: 0, y: y + 11 }, name),
      svgElement("rect", { class: "wait", x: start + held, y: y + .5, width: Math.max(0, left - 1), height: 13 }),
      svgElement("rect", { class: hold.held_ms > 30_000 ? "over" : "hold", x: start, y, width: Math.max(2, held), height: 14, rx: 2 }));
  });
  return element("figure", { class: "chart" }, svg,
    element("figcaption", {}, "Solid: held so far. Dashed: what is left of the lease, which is renewed."));
}
