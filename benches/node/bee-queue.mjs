// bee-queue. Its job cache and its events to producers are off, as its documentation recommends for
// throughput.

import Queue from 'bee-queue';

import { main, plan } from './plan.mjs';

const settings = {
  redis: { host: '127.0.0.1', port: plan.redis_port },
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
    ...(plan.debounce_millis ? { delayedDebounce: plan.debounce_millis } : {}),
  });
  await queue.ready();
  if (isWorker) {
    return {
      work: async (concurrency, started) => {
        queue.process(concurrency, async (job) => started(job.data));
      },
    };
  }
  const createJob = (data, delay) => {
    const job = queue.createJob(data);
    return delay ? job.delayUntil(Date.now() + delay) : job;
  };
  return {
    push: (_, data, delay) => createJob(data, delay).save(),
    pushAll: async (bodies) => {
      const errors = await queue.saveAll(bodies.map((data) => createJob(data)));
      for (const error of errors.values()) throw error;
    },
  };
});
