// bullmq. Settings are those of its documentation, unless the plan sets them.

import { Queue, Worker } from 'bullmq';

import { main, plan } from './plan.mjs';

const connection = { host: '127.0.0.1', port: plan.redis_port };

await main(async () => {
  if (plan.role === 'run') {
    return {
      work: async (concurrency, started) => {
        const handler = async (job) => started(job.data);
        const worker = new Worker('bench', handler, {
          connection: { ...connection, maxRetriesPerRequest: null },
          concurrency,
        });
        worker.on('error', (error) => console.error(error));
        await worker.waitUntilReady();
      },
    };
  }
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  return {
    push: (_, data, delay) => queue.add('bench', data, delay ? { delay } : {}),
    pushAll: (bodies) => queue.addBulk(bodies.map((data) => ({ name: 'bench', data }))),
  };
});
