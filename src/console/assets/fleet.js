// Fleet: the processes that answered, and their workers.
import { duration, element, table } from "./dom.js";

export const title = "Fleet";

export function open(main) {
  const body = element("div");
  main.append(body);
  return { show: ({ processes = [] }) => body.replaceChildren(table("Processes", [
    ["Process", (process) => `${process.host} (${process.pid})`],
    ["Version", (process) => process.version],
    ["Up for", (process) => duration(process.uptime_ms), true],
    ["Locks held", (process) => String(process.hold_count), true],
    ["Workers", (process) => element("span", {}, process.workers.map((worker) =>
      element("div", {}, `${worker.queue ?? "deferred requests"}: ${worker.busy} of ${worker.slots} slots busy`)))],
  ], processes, "No process answered.")) };
}
