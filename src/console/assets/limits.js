// Limits: policies as deployed, refused subjects, and what one subject has left.
import { choice, duration, element, field, table } from "./dom.js";
import { read } from "./api.js";
import { actionButton } from "./actions.js";
import { chart, points } from "./history.js";

export const title = "Limits";

export async function open(main, { policy, subject }) {
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    const asked = new URLSearchParams(new FormData(form));
    location.hash = `limits?${asked}`;
  } }, field("Policy", { name: "policy", value: policy ?? "", required: true }),
  field("Client or subject", { name: "subject", value: subject ?? "", required: true }),
  element("button", {}, "Show what is left"));
  const detail = element("section", { "aria-label": "One subject" });
  const all = element("section", { "aria-label": "All policies" });
  main.append(form, detail, all);
  if (policy && subject) await showSubject(detail, policy, subject);
  return { show: (snapshot) => all.replaceChildren(...policies(snapshot)) };
}

async function showSubject(section, policy, subject) {
  const state = await read("subject", { policy, subject });
  const done = () => showSubject(section, policy, subject);
  section.replaceChildren(element("h3", {}, `${subject} under ${policy}`), element("p", {}, state.sentence),
    element("p", {},
      actionButton("Reset", { title: `Give ${subject} its whole quota back?`, danger: false, action: () => ({ action: "reset-limit", policy, subject }), done }),
      " ", actionButton("Block", {
        title: `Block ${subject}?`, text: "Every request of this subject is refused until then.",
        fields: [() => field("For how many seconds", { name: "seconds", type: "number", min: "1", max: "31536000", value: "600", required: true })],
        action: (values) => ({ action: "block", policy, subject, seconds: Number(values.seconds) }), done,
      }),
      " ", state.blocked ? actionButton("Unblock", { title: `Unblock ${subject}?`, danger: false, action: () => ({ action: "unblock", policy, subject }), done }) : null));
}

function policies({ policies: rows, refused }) {
  const busiest = [...rows].sort((left, right) => right.refused - left.refused)[0];
  return [
    element("h3", {}, "Policies as deployed"),
    table("Policies", [
      ["Policy", (policy) => policy.name],
      ["Quota", (policy) => policy.quota],
      ["Mode", (policy) => policy.shadow ? "shadow" : "enforced"],
      ["Admitted", (policy) => String(policy.admitted), true],
      ["Refused", (policy) => String(policy.refused), true],
      ["Set here", (policy) => policy.changed ? "changed by an operator" : null],
      ["Actions", change],
    ], rows, "No process has a policy with a name."),
    busiest ? chart(`Refusals a second, ${busiest.name}`, points(`refused ${busiest.name}`, true)) : null,
    element("h3", {}, "Most refused"),
    table("Most refused", [
      ["Subject", (row) => element("a", { href: `#limits?${new URLSearchParams({ policy: row.policy, subject: row.subject })}` }, row.subject)],
      ["Policy", (row) => row.policy],
      ["Refusals, about", (row) => String(row.refusals), true],
    ], refused, "Nobody was refused lately."),
  ].filter(Boolean);
}

function change(policy) {
  return element("span", {},
    actionButton("Change", {
      title: `Change ${policy.name}`, text: `Now ${policy.quota}. All processes follow within a second.`,
      fields: [
        () => field("Requests", { name: "limit", type: "number", min: "1", value: String(policy.limit), required: true }),
        () => field("Per seconds", { name: "window", type: "number", min: "1", value: String(policy.window_ms / 1000), required: true }),
        () => choice("Mode", "mode", [["enforced", "enforced"], ["shadow", "shadow: refuse nobody, count only"]], policy.shadow ? "shadow" : "enforced"),
      ],
      action: (values) => ({ action: "set-policy", policy: policy.name, limit: Number(values.limit), window_ms: Number(values.window) * 1000, shadow: values.mode === "shadow" }),
    }),
    " ", policy.changed ? actionButton("As deployed", { title: `Use ${policy.name} as deployed?`, danger: false, action: () => ({ action: "clear-policy", policy: policy.name }) }) : null);
}
