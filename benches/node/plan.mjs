// Node process of a queue benchmark. Plan, stdin commands, clock and counters are those of
// ../src/queue/queue_process.rs, so that only the library differs.

import { createInterface } from 'node:readline';

const commands = [];
const commandWaiters = [];

// Exits when stdin closes, which the end of the runner causes too.
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) =>
  commandWaiters.length ? commandWaiters.shift()(line) : commands.push(line),
);
lines.on('close', () => process.exit(0));

// Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
export const now = () => Number(process.hrtime.bigint());
const nextCommand = () =>
  commands.length
    ? Promise.resolve(commands.shift())
    : new Promise((resolve) => commandWaiters.push(resolve));
const writeLine = (line) => process.stdout.write(`${line}\n`);
const sleep = (nanos) => new Promise((resolve) => setTimeout(resolve, Math.max(0, nanos / 1e6)));

/// Creates the body of a job: `plan.body_bytes` bytes as JSON.
export function payload(job) {
  const emptyLength = JSON.stringify({ job, text: '' }).length;
  return { job, text: 'x'.repeat(Math.max(0, plan.body_bytes - emptyLength)) };
}

/// Counter of runs, like ../src/queue/run_recorder.rs.
class RunRecorder {
  constructor(jobs, recordTimes) {
    this.counts = new Uint8Array(jobs);
    this.startTimes = recordTimes ? new Float64Array(jobs) : undefined;
    this.distinctRuns = this.repeatedRuns = this.unexpectedRuns = 0;
    this.firstStart = this.lastStart = 0;
  }

  started(data) {
    const startedAt = now();
    const { job, text } = data ?? {};
    const valid = Number.isInteger(job) && job >= 0 && job < this.counts.length;
    if (!valid || JSON.stringify({ job, text: '' }).length + text.length !== plan.body_bytes) {
      this.unexpectedRuns += 1;
      return;
    }
    if (this.counts[job]++) this.repeatedRuns += 1;
    else this.distinctRuns += 1;
    this.firstStart ||= startedAt;
    this.lastStart = startedAt;
    if (this.startTimes) this.startTimes[job] ||= startedAt;
  }
}

export const plan = JSON.parse(process.argv[2]);

/// Runs the process. By the role of the plan, `connect()` resolves to an object with the methods
/// `push(job, data, delayMs)` and `pushAll(bodies)`, or with `work(concurrency, handler)`.
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
  const recorder = new RunRecorder(plan.jobs, plan.record_times);
  await library.work(plan.concurrency, (data) => recorder.started(data));
  writeLine('ready');
  await nextCommand();
  let [progress, progressAt] = [0, now()];
  while (recorder.distinctRuns < plan.jobs) {
    await sleep(2e6);
    if (recorder.distinctRuns !== progress) [progress, progressAt] = [recorder.distinctRuns, now()];
    else if (now() - progressAt > plan.idle_timeout) break;
  }
  writeLine('done');
  await nextCommand();
  writeLine(
    JSON.stringify({
      distinct_runs: recorder.distinctRuns,
      repeated_runs: recorder.repeatedRuns,
      unexpected_runs: recorder.unexpectedRuns,
      first_start: recorder.firstStart,
      last_start: recorder.lastStart,
      start_times: [...(recorder.startTimes ?? [])],
    }),
  );
  await nextCommand();
}

async function push(library) {
  writeLine('ready');
  const start = Number(await nextCommand());
  const end = plan.jobs ? Infinity : start + plan.window;
  const maxJobs = plan.jobs || Infinity;
  const report = {
    pushed: 0,
    counted: 0,
    failed: 0,
    first_failure: null,
    push_times: [],
    began: now(),
    ended: 0,
  };
  const latencies = [];
  let nextJob = 0;
  const producer = async () => {
    for (;;) {
      const pushedAt = now();
      if (pushedAt >= end || nextJob >= maxJobs) return;
      const size = Math.min(plan.batch_size, maxJobs - nextJob);
      const job = nextJob;
      nextJob += size;
      try {
        if (plan.record_times) report.push_times[job] = pushedAt;
        if (size === 1) await library.push(job, payload(job), plan.delay);
        else await library.pushAll(Array.from({ length: size }, (_, n) => payload(job + n)));
        const answeredAt = now();
        report.pushed += size;
        if (pushedAt >= start && answeredAt < end) {
          report.counted += size;
          latencies.push(answeredAt - pushedAt);
        }
      } catch (error) {
        report.failed += size;
        report.first_failure ??= String(error);
      }
      if (plan.pause) await sleep(plan.pause);
    }
  };
  await Promise.all(Array.from({ length: plan.concurrency }, producer));
  report.ended = now();
  latencies.sort((a, b) => a - b);
  const latencyMillis = (perMille) => {
    const rank = Math.ceil((latencies.length * perMille) / 1000);
    return (latencies[Math.max(0, rank - 1)] ?? 0) / 1e6;
  };
  writeLine(JSON.stringify({ ...report, p50: latencyMillis(500), p99: latencyMillis(990) }));
  await nextCommand();
  writeLine('ended');
  await nextCommand();
}
