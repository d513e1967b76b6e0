// Fleet: the processes that answered, and their workers.
import { duration, element, table } from "./dom.js";
import { actionButton } from "./actions.js";

export const title = "Fleet";

export function open(main) {
  const body = element("div");
  main.append(body);
  return { show: ({ processes = [], silent = [], truncated = false }) => body.replaceChildren(
    truncated ? element("p", { class: "bad" }, "256 store handles have answered, the most that an inquiry takes: there may be other processes.") : "", table("Processes", [
    ["Process", (process) => `${process.host} (${process.pid})`],
    ["Version", (process) => process.version],
    ["Up for", (process) => duration(process.uptime_ms), true],
    ["Locks held", (process) => String(process.hold_count), true],
    ["Workers", (process) => element("span", {}, process.workers.map((worker) =>
      element("div", {}, `${worker.queue ?? "deferred requests"}: ${worker.busy} of ${worker.slots} slots busy`)))],
    ["State", (process) => process.draining ? "draining" : "works"],
    ["Actions", drainButton],
  ], processes, "No process answered."), ...silentNodes(silent)) };
}

/** Workers whose processes did not answer: they hang, or have died. */
function silentNodes(silent) {
  if (silent.length === 0) return [];
  return [element("h3", { class: "bad" }, "Did not answer"), table("Nodes that did not answer", [
    ["Node", (node) => node.node],
    ["Lease of its worker", (node) => node.lease_left_ms ? `${duration(node.lease_left_ms)} left` : "has ended", true],
  ], silent, "")];
}

function drainButton(process) {
  const { node, host, pid } = process, name = `${host} (${pid})`;
  return process.draining
    ? actionButton("Resume", { title: `Resume ${name}?`, danger: false, action: () => ({ action: "resume-process", node }) })
    : actionButton("Drain", { title: `Drain ${name}?`, text: "Its workers finish what runs and start nothing more, until it is resumed or starts again. It goes on to serve requests.", action: () => ({ action: "drain-process", node }) });
}
