// Audit: who did what, newest first.
import { element, pointInTime, table } from "./dom.js";
import { read } from "./api.js";
import { button } from "./actions.js";

export const title = "Audit";

export async function open(main) {
  const list = element("div");
  main.append(list);
  await showPage(list);
}

async function showPage(list, cursor) {
  const page = await read("audit", { cursor });
  list.replaceChildren(...[
    table("Actions of operators", [
      ["Time", (record) => pointInTime(record.recorded_us / 1000)], ["Operator", (record) => record.operator],
      ["Action", (record) => record.action], ["Target", (record) => record.target],
      ["Reason", (record) => record.reason], ["Outcome", (record) => typeof record.outcome === "string" ? record.outcome : `failed: ${record.outcome.failed}`],
    ], page.records, "No action is recorded."),
    page.next ? button("Older", () => showPage(list, page.next)) : null,
  ].filter(Boolean));
}
