// Fleet: the processes that answered, and their workers.
import { duration, element, table } from "./dom.js";
import { actionButton } from "./actions.js";

export const title = "Fleet";

export function open(main) {
  const body = element("div");
  main.append(body);
  return { show: ({ processes }) => body.replaceChildren(table("Processes", [
    ["Process", (process) => `${process.host} (${process.pid})`],
    ["Version", (process) => process.version],
    ["Up for", (process) => duration(process.uptime_ms), true],
    ["Locks held", (process) => String(process.holds), true],
    ["Workers", (process) => element("span", {}, process.workers.map((worker) =>
      element("div", {}, `${worker.queue ?? "deferred requests"}: ${worker.busy} of ${worker.slots} slots busy${worker.draining ? ", draining" : ""}`)))],
    ["Actions", (process) => process.workers.length ? actionButton("Drain", {
      title: `Drain ${process.host} (${process.pid})?`, text: "Its workers start nothing more. What runs goes on to its end. A restart of the process undoes it.",
      action: () => ({ action: "drain-process", node: process.node }),
    }) : null],
  ], processes, "No process answered.")) };
}
