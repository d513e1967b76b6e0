// Deferred requests: lists by state, and one request with its runs.
import { bytes, choice, element, field, pointInTime, table } from "./dom.js";
import { act, may, read } from "./api.js";
import { actionButton, button } from "./actions.js";

export const title = "Deferred requests";

const RUNNING = "Its run is told to stop, and dropped after 5 s. If it succeeds before, it is done.";
const STATES = [["pending", "not ended"], ["waiting", "waiting"], ["delayed", "delayed"], ["running", "running"], ["dead", "dead"], ["done", "done"]];

export async function open(main, parameters) {
  const { state = "pending", owner, lock, route, reason, id } = parameters;
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    const asked = [...new FormData(form)].filter(([, value]) => value !== "");
    location.hash = `jobs?${new URLSearchParams(asked)}`;
  } }, choice("State", "state", STATES, state), field("Id", { name: "id", value: id ?? "" }), field("Owner", { name: "owner", value: owner ?? "" }),
  field("Lock", { name: "lock", value: lock ?? "" }), field("Route contains", { name: "route", value: route ?? "" }), field("Reason contains", { name: "reason", value: reason ?? "" }),
  element("button", {}, "List"));
  const detail = element("section", { "aria-label": "One request" });
  const list = element("section", { "aria-label": "List" });
  main.append(form, detail, list);
  if (id) await showJob(detail, id);
  else await showPage(list, { state, owner, lock, route, reason });
}

async function showPage(list, filter) {
  const page = await read("jobs", filter);
  const more = page.next ? button("Next page", () => showPage(list, { ...filter, cursor: page.next })) : null;
  list.replaceChildren(...[
    table("Deferred requests", [
      ["Id", (job) => element("a", { href: `#jobs?id=${job.id}` }, job.id.slice(0, 10))],
      ["State", (job) => job.state],
      ["Lock", (job) => job.lock],
      ["Route", (job) => job.route],
      ["Attempts", (job) => String(job.attempts), true],
      ["Accepted", (job) => pointInTime(job.accepted_ms)],
      ["Reason", (job) => job.reason],
    ], page.jobs, "None."),
    element("p", {}, `${page.examined} looked at. `, more, " ", filter.state === "dead" ? actionButton("Redrive all", {
      title: "Run all dead requests again?", text: "They are spread over time, so that the service is not flooded. This goes on when the page is closed; the audit log tells its end.", danger: false,
      fields: [() => field("At most so many a second", { name: "pace", type: "number", min: "1", max: "1000", value: "10", required: true })],
      action: (values) => ({ action: "redrive-dead-jobs", per_second: Number(values.pace) }), done: () => showPage(list, filter),
    }) : null, " ", filter.state === "dead" ? actionButton("Purge all", {
      title: "Delete all dead requests of an age?", text: "This goes on when the page is closed; the audit log tells its end.",
      fields: [() => field("That died at least so many hours ago (0: all)", { name: "hours", type: "number", min: "0", max: "87600", value: "24", required: true })],
      action: (values) => ({ action: "purge-dead-jobs", older_than_seconds: 3600 * Number(values.hours) }), done: () => showPage(list, filter),
    }) : null),
  ].filter(Boolean));
}

async function showJob(section, id) {
  const job = await read("job", { id });
  const done = () => showJob(section, id);
  const row = (label, value) => value === null || value === undefined || value === "" ? null : [element("dt", {}, label), element("dd", {}, String(value))];
  section.replaceChildren(...[
    element("h3", {}, job.id),
    element("dl", { class: "facts" }, [
      row("State", job.state), row("Why", job.reason), row("Lock", job.lock), row("Route", job.route), row("Owner", job.owner),
      row("Position", job.position), row("Attempts", job.attempts), row("Crashes", job.crashes), row("Size", bytes(job.bytes)),
      row("Accepted", pointInTime(job.accepted_ms)), row("Ended", pointInTime(job.ended_ms)), row("Runs at", job.process),
    ].filter(Boolean).flat()),
    table("Runs", [
      ["Attempt", (run) => String(run.attempt), true], ["Began", (run) => pointInTime(run.began_ms)],
      ["Ended", (run) => pointInTime(run.ended_ms)], ["Result", (run) => run.outcome],
    ], job.runs, "It has not run."),
    element("p", {}, ...buttons(job, done, section).filter(Boolean).flatMap((one) => [one, " "])),
  ].filter(Boolean));
}

function buttons(job, done, section) {
  const { id, state } = job;
  const isPending = state === "queued" || state === "running";
  return [
    isPending ? actionButton("Cancel", { title: "Cancel this request?", text: state === "running" ? RUNNING : undefined, action: () => ({ action: "cancel-job", id }), done }) : null,
    state === "queued" ? actionButton("Run now", { title: "Run this request as soon as its lock is free?", danger: false, action: () => ({ action: "run-job-now", id }), done }) : null,
    state === "dead" ? actionButton("Redrive", { title: "Run this request again?", danger: false, action: () => ({ action: "redrive-job", id }), done }) : null,
    !isPending ? actionButton("Purge", { title: "Delete this request and its response?", action: () => ({ action: "purge-job", id }), done }) : null,
    may("see-payloads") ? button("Show its request", () => showPayload(section, id)) : null,
  ];
}

async function showPayload(section, id) {
  const payload = await act({ action: "job-payload", id });
  section.append(element("h3", {}, "Request"), element("pre", {}, payload.text));
}
