// Check: the report on the store's data, and its repair.
import { element, table } from "./dom.js";
import { act } from "./api.js";
import { actionButton } from "./actions.js";

export const title = "Check of the store";

export function open(main) {
  const report = element("div", { role: "status" });
  const run = async () => {
    report.replaceChildren(element("p", {}, "Checking…"));
    try {
      show(report, await act({ action: "check" }));
    } catch (error) {
      report.replaceChildren(element("p", { class: "bad" }, error.message));
    }
  };
  main.append(
    element("p", {}, "Looks at every key of the namespace while the service runs. With a million deferred requests this takes minutes, in short steps."),
    element("p", {}, element("button", { type: "button", onclick: run }, "Check now"), " ",
      actionButton("Check and repair", { title: "Check and repair?", text: "No request that can still run is lost.", action: () => ({ action: "repair" }), done: run })),
    report);
}

function show(report, { summary, findings }) {
  report.replaceChildren(element("p", {}, summary), table("Findings", [
    ["Kind", (finding) => finding.kind], ["Name", (finding) => finding.name],
    ["State", (finding) => finding.repaired ? "repaired" : finding.is_fault ? "fault" : "note"],
  ], findings, "Nothing is wrong."));
}
