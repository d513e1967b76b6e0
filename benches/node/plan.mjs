// One process of a run in Node: the same plan, the same words, the same clock and the same counting as
// ../src/queue/process.rs, so that only the library differs.

import { createInterface } from 'node:readline';

const words = [];
const waiting = [];

// When the conductor goes, however it ends, this process does too.
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => (waiting.length ? waiting.shift()(line) : words.push(line)));
lines.on('close', () => process.exit(0));

// CLOCK_MONOTONIC, as everybody's.
export const now = () => Number(process.hrtime.bigint());
const next = () =>
  words.length ? Promise.resolve(words.shift()) : new Promise((tell) => waiting.push(tell));
const say = (line) => process.stdout.write(`${line}\n`);
const pause = (nanos) => new Promise((done) => setTimeout(done, Math.max(0, nanos / 1e6)));

/// The payload of a job: so many bytes as JSON.
export function payload(job) {
  const bare = JSON.stringify({ job, text: '' }).length;
  return { job, text: 'x'.repeat(Math.max(0, plan.bytes - bare)) };
}

/// What has run, as seen.rs has it.
class Seen {
  constructor(jobs, keep) {
    this.counts = new Uint8Array(jobs);
    this.starts = keep ? new Float64Array(jobs) : undefined;
    this.ran = this.twice = this.strange = this.first = this.last = this.done = 0;
  }

  started(data) {
    const at = now();
    const { job, text } = data ?? {};
    const known = Number.isInteger(job) && job >= 0 && job < this.counts.length;
    if (!known || JSON.stringify({ job, text: '' }).length + text.length !== plan.bytes) {
      this.strange += 1;
      return;
    }
    if (this.counts[job]++) this.twice += 1;
    else this.ran += 1;
    this.first ||= at;
    this.last = at;
    if (this.starts) this.starts[job] ||= at;
  }
}

export const plan = JSON.parse(process.argv[2]);

/// `connect()` gives `push(job, data, delayMs)`, `pushAll(list)` and `work(concurrency, handler)`.
export async function main(connect) {
  try {
    const library = await connect();
    await (plan.role === 'run' ? run(library) : push(library));
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
}

async function run(library) {
  const seen = new Seen(plan.jobs, plan.keep);
  await library.work(plan.tasks, (data) => seen.started(data));
  say('ready');
  await next();
  let [progress, at] = [0, now()];
  while (seen.ran < plan.jobs) {
    await pause(2e6);
    if (seen.ran !== progress) [progress, at] = [seen.ran, now()];
    else if (now() - at > plan.patience) break;
  }
  say('done');
  await next();
  const { ran, twice, strange, first, last } = seen;
  say(JSON.stringify({ ran, twice, strange, first, last, starts: [...(seen.starts ?? [])] }));
  await next();
}

async function push(library) {
  say('ready');
  const start = Number(await next());
  const end = plan.jobs ? Infinity : start + plan.window;
  const most = plan.jobs || Infinity;
  const sums = { pushed: 0, counted: 0, failed: 0, first_failure: null, asked: [], began: now(), ended: 0 };
  const took = [];
  let job = 0;
  const task = async () => {
    for (;;) {
      const asked = now();
      if (asked >= end || job >= most) return;
      const size = Math.min(plan.bulk, most - job);
      const first = job;
      job += size;
      try {
        if (plan.keep) sums.asked[first] = asked;
        if (size === 1) await library.push(first, payload(first), plan.delay);
        else await library.pushAll(Array.from({ length: size }, (_, n) => payload(first + n)));
        const at = now();
        sums.pushed += size;
        if (asked >= start && at < end) {
          sums.counted += size;
          took.push(at - asked);
        }
      } catch (error) {
        sums.failed += size;
        sums.first_failure ??= String(error);
      }
      if (plan.pause) await pause(plan.pause);
    }
  };
  await Promise.all(Array.from({ length: plan.tasks }, task));
  sums.ended = now();
  took.sort((a, b) => a - b);
  const quantile = (per) => (took[Math.max(0, Math.ceil((took.length * per) / 1000) - 1)] ?? 0) / 1e6;
  say(JSON.stringify({ ...sums, p50: quantile(500), p99: quantile(990) }));
  await next();
  say('ended');
  await next();
}
