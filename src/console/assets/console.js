// Start of the console: pages by the fragment of the address, and the stream of snapshots.
import { element } from "./dom.js";
import { follow, read, session } from "./api.js";
import { notify } from "./actions.js";
import { remember } from "./history.js";
import * as overview from "./overview.js";
import * as locks from "./locks.js";
import * as limits from "./limits.js";
import * as jobs from "./jobs.js";
import * as queues from "./queues.js";
import * as fleet from "./fleet.js";
import * as check from "./check.js";
import * as audit from "./audit.js";

const pages = { overview, locks, limits, jobs, queues, fleet, check, audit };
const main = document.getElementById("page");
let snapshot = null;
let current = null;
let opened = 0;

/** Splits `#locks?key=order:7` into the page and its parameters. */
function place() {
  const [name, query] = location.hash.slice(1).split("?");
  return { name: pages[name] ? name : "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Opens the page of the address. */
async function open() {
  const { name, parameters } = place();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const page = pages[name];
  document.title = `${page.title} – lockgate console`;
  current = null;
  opened += 1;
  const ticket = opened;
  // A page that was left while it loaded fills an element that nobody sees.
  const content = element("div", {}, element("h2", {}, page.title));
  main.replaceChildren(content);
  try {
    const view = await page.open(content, parameters);
    if (ticket !== opened) return;
    current = view ?? {};
    if (snapshot) current.show?.(snapshot);
  } catch (error) {
    content.append(element("p", { class: "bad" }, error.message));
  }
}

function show(next) {
  snapshot = next;
  remember(next);
  // A page that is being used keeps its rows where they are, and a pressed button its click.
  const isUsed = document.getElementById("dialog").open || main.matches(":active") || window.getSelection()?.toString();
  if (isUsed || !current?.show) return;
  const focused = main.contains(document.activeElement) ? document.activeElement : null;
  const at = alike(focused).indexOf(focused);
  const scrolled = [...main.querySelectorAll(".scroll")].map((region) => region.scrollLeft);
  current.show(next);
  main.querySelectorAll(".scroll").forEach((region, index) => { region.scrollLeft = scrolled[index] ?? 0; });
  // The element that had the focus may be another one now.
  if (focused && !focused.isConnected) alike(focused)[at]?.focus({ preventScroll: true });
}

/** Elements of the page with the name and the text of this one. */
function alike(node) {
  if (node === null) return [];
  return [...main.querySelectorAll(node.localName)].filter((other) =>
    other.localName === "div" ? other.ariaLabel === node.ariaLabel : other.textContent === node.textContent);
}

async function start() {
  try {
    session.operator = await read("session");
    const { name, may } = session.operator;
    document.getElementById("operator").textContent = may === "look" ? `${name} (read-only)` : name;
  } catch (error) {
    notify(error.message);
    return;
  }
  window.addEventListener("hashchange", async () => {
    main.focus();
    await open();
  });
  // Its fragment is no page's name.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  await open();
  follow(show, (state) => { document.getElementById("live").textContent = state; });
}

start();
