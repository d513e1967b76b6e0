// bee-queue, by its own words. What it keeps of jobs in the process, and the events back to who pushed
// them, are off: its documentation says so for throughput.

import Queue from 'bee-queue';

import { main, plan } from './plan.mjs';

const settings = {
  redis: { host: '127.0.0.1', port: plan.port },
  getEvents: false,
  sendEvents: false,
  storeJobs: false,
};

await main(async () => {
  const isWorker = plan.role === 'run';
  const queue = new Queue('bench', {
    ...settings,
    isWorker,
    activateDelayedJobs: isWorker,
    ...(plan.debounce ? { delayedDebounce: plan.debounce } : {}),
  });
  await queue.ready();
  if (isWorker) {
    return {
      work: async (concurrency, started) => {
        queue.process(concurrency, async (job) => started(job.data));
      },
    };
  }
  const made = (data, delay) => {
    const job = queue.createJob(data);
    return delay ? job.delayUntil(Date.now() + delay) : job;
  };
  return {
    push: (_, data, delay) => made(data, delay).save(),
    pushAll: async (list) => {
      const errors = await queue.saveAll(list.map((data) => made(data)));
      for (const error of errors.values()) throw error;
    },
  };
});
