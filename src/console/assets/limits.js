// Limits: policies that an operator has changed, and actions on one subject.
import { choice, element, field, table } from "./dom.js";
import { actionButton } from "./actions.js";
import { chart, points } from "./history.js";

export const title = "Limits";

export async function open(main, { policy = "", subject = "" }) {
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `limits?${new URLSearchParams(new FormData(form))}`;
  } }, field("Policy, by its name in the code", { name: "policy", value: policy, required: true }),
  field("Subject, such as an address (empty: the policy)", { name: "subject", value: subject }),
  element("button", {}, "Choose"));
  const chosen = element("section", { "aria-label": "The chosen policy" });
  const all = element("section", { "aria-label": "Changed policies" });
  main.append(form, chosen, all);
  if (policy) chosen.append(element("h3", {}, subject ? `${subject} under ${policy}` : policy), element("p", {},
    ...(subject ? subjectButtons(policy, subject) : [changeButton(policy)]).filter(Boolean).flatMap((button) => [button, " "])));
  return { show: (snapshot) => all.replaceChildren(...content(snapshot)) };
}

function content({ policies = [], stats = {} }) {
  return [
    element("p", {}, `${stats.admitted ?? 0} requests were admitted and ${stats.refused ?? 0} refused since the processes started.`),
    chart("Refusals a second", points("refused", true)),
    element("h3", {}, "Policies that an operator has changed"),
    table("Changed policies", [
      ["Policy", (policy) => element("a", { href: `#limits?${new URLSearchParams({ policy: policy.name })}` }, policy.name)],
      ["Quota", (policy) => quota(policy.change.quota)],
      ["Mode", (policy) => policy.change.shadow === undefined ? "as deployed" : policy.change.shadow ? "shadow" : "enforced"],
      ["Actions", (policy) => actionButton("As deployed", { title: `Use ${policy.name} as deployed?`, danger: false, action: () => ({ action: "clear-policy", policy: policy.name }) })],
    ], policies, "All policies are as deployed."),
  ];
}

function quota(quota) {
  return quota ? `${quota.limit} in ${quota.window_ms / 1000} s` : "as deployed";
}

function changeButton(policy) {
  return actionButton("Change the quota", {
    title: `Change ${policy}`, text: "All processes follow within a second.",
    fields: [
      () => field("Requests", { name: "limit", type: "number", min: "0", required: true }),
      () => field("Per seconds", { name: "window", type: "number", min: "1", required: true }),
      () => choice("Mode", "mode", [["enforced", "enforced"], ["shadow", "shadow: refuse nobody, count only"]], "enforced"),
    ],
    action: (values) => ({ action: "set-policy", policy, change: {
      quota: { counting: "fixed", limit: Number(values.limit), window_ms: Number(values.window) * 1000 },
      shadow: values.mode === "shadow",
    } }),
  });
}

function subjectButtons(policy, subject) {
  return [
    actionButton("Reset", { title: `Give ${subject} its whole quota back?`, danger: false, action: () => ({ action: "reset-limit", policy, subject }) }),
    actionButton("Block", {
      title: `Block ${subject}?`, text: "Every request of this subject is refused until then.",
      fields: [() => field("For how many seconds", { name: "seconds", type: "number", min: "1", max: "31536000", value: "600", required: true })],
      action: (values) => ({ action: "block", policy, subject, seconds: Number(values.seconds) }),
    }),
    actionButton("Unblock", { title: `Unblock ${subject}?`, danger: false, action: () => ({ action: "unblock", policy, subject }) }),
  ];
}
