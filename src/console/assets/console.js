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

/** Splits `#locks?key=order:7` into the page and its parameters. */
function place() {
  const [name, query] = location.hash.slice(1).split("?");
  return { name: pages[name] ? name : "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Opens the page of the address, and moves the focus to it. */
async function open() {
  const { name, parameters } = place();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const page = pages[name];
  document.title = `${page.title} – lockgate console`;
  current = null;
  main.replaceChildren(element("h2", {}, page.title));
  main.focus();
  try {
    const view = await page.open(main, parameters);
    current = view ?? {};
    if (snapshot) current.show?.(snapshot);
  } catch (error) {
    main.append(element("p", { class: "bad" }, error.message));
  }
}

function show(next) {
  snapshot = next;
  remember(next);
  // A page that is being used keeps its rows where they are.
  if (!document.getElementById("dialog").open && !window.getSelection()?.toString()) current?.show?.(next);
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
  window.addEventListener("hashchange", open);
  await open();
  follow(show, (state) => { document.getElementById("live").textContent = state; });
}

start();
