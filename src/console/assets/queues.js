// Queues: depth, and the tasks of one queue by state.
import { bytes, choice, duration, element, field, pointInTime, table } from "./dom.js";
import { act, may, read } from "./api.js";
import { actionButton, button } from "./actions.js";
import { chart, points } from "./history.js";

export const title = "Queues";

const RUNNING = "Its run is told to stop, and dropped after 5 s. If it succeeds before, it is done.";
const STATES = [["due", "due"], ["delayed", "delayed"], ["running", "running"], ["dead", "dead letters"]];

export async function open(main, { name, state = "due", reason = "" }) {
  const detail = element("section", { "aria-label": "One queue" });
  const charts = element("div");
  const all = element("section", { "aria-label": "All queues" });
  main.append(all, detail);
  if (name) {
    const form = element("form", { class: "bar", onsubmit: (event) => event.preventDefault(), onchange: () => {
      const values = new FormData(form);
      location.hash = `queues?${new URLSearchParams({ name, state: values.get("state"), reason: values.get("reason") ?? "" })}`;
    } }, choice("Tasks that are", "state", STATES, state),
    state === "dead" ? field("Reason contains", { name: "reason", value: reason }) : "");
    const tasks = element("div");
    detail.append(element("h3", {}, name), charts, form, tasks);
    await showTasks(tasks, name, state, state === "dead" ? reason : "");
  }
  return { show: ({ queues = [] }) => {
    all.replaceChildren(queueTable(queues));
    if (name) charts.replaceChildren(chart(`${name}: tasks due`, [points(`queue ${name}`)]), chart(`${name}: seconds that the oldest has been due`, [points(`wait ${name}`)]));
  } };
}

function queueTable(queues) {
  return table("Queues", [
    ["Queue", (queue) => element("a", { href: `#queues?${new URLSearchParams({ name: queue.name })}` }, queue.name)],
    ["Due", (queue) => String(queue.due), true], ["Delayed", (queue) => String(queue.waiting - queue.due), true],
    ["Running", (queue) => String(queue.running), true], ["Dead", (queue) => String(queue.dead_letters), true],
    ["Oldest due", (queue) => duration(queue.oldest_due_ms), true], ["Size", (queue) => bytes(queue.bytes), true],
    ["Actions", (queue) => queue.paused
      ? actionButton("Resume", { title: `Resume ${queue.name}?`, danger: false, action: () => ({ action: "resume-queue", queue: queue.name }) })
      : actionButton("Pause", { title: `Pause ${queue.name}?`, text: "Nothing starts until it is resumed. What runs goes on.", action: () => ({ action: "pause-queue", queue: queue.name }) })],
  ], queues, "No queue was used yet.");
}

async function showTasks(section, queue, state, reason, cursor) {
  const page = await read("tasks", { queue, state, reason, cursor });
  const done = () => showTasks(section, queue, state, reason, cursor);
  section.replaceChildren(...[
    table("Tasks", [
      ["Id", (task) => task.id.slice(0, 10)],
      ["Pushed", (task) => pointInTime(task.pushed_ms)],
      ["Due in", (task) => duration(task.due_in_ms), true],
      ["Attempts", (task) => String(task.attempts), true],
      ["Last failure", (task) => task.history.at(-1)?.reason],
      ["Actions", (task) => taskButtons(queue, state, task, done)],
    ], page.tasks, page.next ? "None among those that were read." : "None."),
    element("p", {}, page.next ? button("Next page", () => showTasks(section, queue, state, reason, page.next)) : null, " ",
      state === "dead" ? actionButton("Redrive all", {
        title: `Run all dead letters of ${queue} again?`, danger: false,
        fields: [() => field("At most so many a second", { name: "pace", type: "number", min: "1", max: "1000", value: "10", required: true })],
        action: (values) => ({ action: "redrive-tasks", queue, per_second: Number(values.pace) }), done,
      }) : null),
  ]);
}

function taskButtons(queue, state, task, done) {
  const { id } = task;
  const buttons = [
    state === "dead" ? actionButton("Redrive", { title: "Run this task again?", danger: false, action: () => ({ action: "redrive-task", queue, id }), done }) : null,
    state === "dead" ? actionButton("Purge", { title: "Delete this dead letter?", action: () => ({ action: "purge-task", queue, id }), done }) : null,
    state === "delayed" ? actionButton("Run now", { title: "Run this task now?", danger: false, action: () => ({ action: "run-task-now", queue, id }), done }) : null,
    state !== "dead" ? actionButton("Cancel", { title: "Cancel this task?", text: state === "running" ? RUNNING : undefined, action: () => ({ action: "cancel-task", queue, id }), done }) : null,
    may("see-payloads") ? button("Payload", async (event) => {
      const payload = await act({ action: "task-payload", queue, id });
      event.target.replaceWith(element("pre", {}, payload.text));
    }) : null,
  ];
  return element("span", {}, buttons.filter(Boolean).flatMap((one) => [one, " "]));
}
