// Limits: policies as deployed and as changed, whom they refuse, and one subject.
import { choice, duration, element, field, svgElement, table } from "./dom.js";
import { read } from "./api.js";
import { actionButton, button } from "./actions.js";
import { chart, growth, perSecond, points } from "./history.js";

export const title = "Limits";

export async function open(main, { policy = "", subject = "" }) {
  const form = element("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    location.hash = `limits?${new URLSearchParams(new FormData(form))}`;
  } }, field("Policy, by its name in the code", { name: "policy", value: policy, required: true }),
  field("Subject, such as 192.0.2.7 (empty: the policy)", { name: "subject", value: subject }),
  element("button", {}, "Show"));
  const chosen = element("section", { "aria-label": "The chosen policy" });
  const all = element("section", { "aria-label": "All policies" });
  main.append(form, chosen, all);
  if (policy && subject) await showSubject(chosen, policy, subject);
  else if (policy) chosen.append(element("h3", {}, policy), element("p", {}, changeButton(policy)));
  return { show: (snapshot) => all.replaceChildren(...content(snapshot)) };
}

async function showSubject(section, policy, subject) {
  const limit = await read("limit", { policy, subject });
  const refresh = () => showSubject(section, policy, subject);
  section.replaceChildren(
    element("h3", {}, `${subject} under ${policy}`),
    ...limit.sentence.split("\n").map((sentence) => element("p", {}, sentence)),
    table("What is left", [
      ["Quota", (left) => left.quota],
      ["Mode", (left) => mode(left.is_shadow)],
      ["Left", (left) => left.remaining === null ? "no limit" : String(left.remaining), true],
      ["More in", (left) => duration(left.reset_after_ms), true],
      ["Refused for", (left) => left.retry_after_ms ? duration(left.retry_after_ms) : null, true],
      ["Blocked for", (left) => duration(left.blocked_for_ms), true],
    ], limit.quotas, "No process that answered has this policy."),
    element("p", {}, ...subjectButtons(policy, subject, refresh).flatMap((one) => [one, " "]),
      button("Refresh", refresh)));
}

function content({ policies = [], stats = {} }) {
  return [
    element("p", {}, `${stats.admitted ?? 0} requests were admitted and ${stats.refused ?? 0} refused since the processes started.`),
    chart("Refusals a second", [points("refused", true)]),
    refusalsByPolicy(policies),
    element("h3", {}, "Policies"),
    table("Policies", [
      ["Policy", (policy) => element("a", { href: `#limits?${new URLSearchParams({ policy: policy.name })}` }, policy.name)],
      ["Quota", (policy) => policy.deployed.length ? each(policy, (deployed) => deployed.is_looked_up ? `${deployed.quota}, or as looked up` : deployed.quota) : "not deployed"],
      ["Mode", (policy) => each(policy, (deployed) => mode(deployed.is_shadow))],
      ["Counted by", (policy) => each(policy, (deployed) => deployed.keys)],
      ["Changed to", (policy) => policy.change ? change(policy) : null],
      ["Refused", (policy) => String(policy.refusals), true],
      ["A second", (policy) => perSecond(`refused ${policy.name}`).toFixed(1), true],
      ["Actions", (policy) => policy.change ? changedPolicyButtons(policy) : null],
    ], policies, "No process has used a policy."),
    element("h3", {}, "Refused most often in the last ten minutes"),
    ranking(policies),
  ].filter(Boolean);
}

/** Lines of the policies that have refused most in the minutes that the page remembers, at most five. */
function refusalsByPolicy(policies) {
  const refused = policies.map(({ name }) => [growth(`refused ${name}`), name]).filter(([count]) => count > 0);
  // By name, so that a line keeps its colour while the ranks change.
  const names = refused.sort(([left], [right]) => right - left).slice(0, 5).map(([, name]) => name).sort();
  if (names.length === 0) return null;
  return chart("Refusals a second of the most refused policies", names.map((name) => points(`refused ${name}`, true)),
    names.map((name) => `${name}: ${perSecond(`refused ${name}`).toFixed(1)}`));
}

/** Subjects of all policies, the most refused first, with a bar for their share of the highest. */
function ranking(policies) {
  const rows = policies.flatMap((policy) => policy.top_refused.map((refused) => ({ ...refused, policy })));
  rows.sort((left, right) => right.refusals - left.refusals);
  const highest = Math.max(1, ...rows.map((row) => row.refusals));
  return table("Refused most often", [
    ["Subject", ({ policy, subject }) => element("a", { href: `#limits?${new URLSearchParams({ policy: policy.name, subject })}` }, subject)],
    ["Policy", (row) => row.policy.name],
    ["Refused", (row) => [row.refusals === row.max_refusals ? String(row.refusals) : `${row.refusals} to ${row.max_refusals}`, bar(row.refusals / highest)], true],
    ["Actions", ({ policy, subject }) => hasName(policy) ? subjectButtons(policy.name, subject).slice(0, 2).flatMap((one) => [one, " "]) : "give the policy a name first"],
  ], rows.slice(0, 20), "No subject was refused.");
}

function bar(part) {
  return svgElement("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    svgElement("rect", { class: "hold", x: 0, y: 0, width: Math.max(1, 100 * part).toFixed(1), height: 6 }));
}

/** Each different value of the deployed forms, with its processes if there are several. */
function each({ deployed, processes }, value) {
  const counts = new Map();
  for (const form of deployed) counts.set(value(form), (counts.get(value(form)) ?? 0) + form.processes);
  return [...counts].map(([text, count]) =>
    element("div", {}, counts.size > 1 ? `${text} (${count} of ${processes} processes)` : text));
}

/** Counters are found by the name of a policy, if the code has given it one. */
function hasName(policy) {
  return policy.deployed.some((deployed) => deployed.is_named);
}

function mode(isShadow) {
  return isShadow ? "shadow" : "enforced";
}

function change({ change, processes, changed_processes }) {
  const { quota, shadow, has_blocks } = change;
  const parts = [quota && quotaText(quota), shadow === undefined ? null : mode(shadow), has_blocks ? "with blocks" : null];
  const follow = quota || shadow !== undefined ? element("div", {}, `in ${changed_processes} of ${processes} processes`) : null;
  return [element("div", {}, parts.filter(Boolean).join(", ")), follow];
}

function quotaText({ counting, limit, window_ms, burst }) {
  if (counting === "unlimited") return counting;
  const end = { fixed: "", sliding: " sliding", gcra: ` burst ${burst}` }[counting] ?? "";
  return `${limit} per ${window_ms / 1000}s${end}`;
}

function changeButton(policy) {
  return actionButton("Change the policy", {
    title: `Change ${policy}`, text: "All processes follow within a second.",
    fields: [
      () => field("Quota, such as 100 per 60s burst 20 (empty: unchanged)", { name: "quota" }),
      () => choice("Mode", "mode", [["", "unchanged"], ["enforced", "enforced"], ["shadow", "shadow: refuse nobody, count only"]], ""),
    ],
    action: ({ quota, mode }) => ({ action: "set-policy", policy, change: {
      ...(quota && { quota }), ...(mode && { shadow: mode === "shadow" }),
    } }),
  });
}

function changedPolicyButtons({ name: policy, change: { quota, shadow, has_blocks } }) {
  return [
    quota || shadow !== undefined ? actionButton("As deployed", {
      title: `Use ${policy} as deployed?`, danger: false, action: () => ({ action: "clear-policy", policy }),
    }) : null,
    has_blocks ? actionButton("End blocks", {
      title: `End all blocks under ${policy}?`, text: "Blocked clients are admitted again.",
      action: () => ({ action: "clear-blocks", policy }),
    }) : null,
  ].filter(Boolean);
}

function subjectButtons(policy, subject, done) {
  return [
    actionButton("Block", {
      title: `Block ${subject}?`, text: "Every request of this subject is refused until then.",
      fields: [() => field("For how many seconds", { name: "seconds", type: "number", min: "1", max: "31536000", value: "600", required: true })],
      action: (values) => ({ action: "block", policy, subject, seconds: Number(values.seconds) }), done,
    }),
    actionButton("Reset", { title: `Give ${subject} its whole quota back?`, danger: false, action: () => ({ action: "reset-limit", policy, subject }), done }),
    actionButton("Unblock", { title: `Unblock ${subject}?`, danger: false, action: () => ({ action: "unblock", policy, subject }), done }),
  ];
}
