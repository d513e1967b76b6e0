//! Idle poll of a queue worker, which confirms that its queue is empty, and renewal of task runs.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::number_arg;
use crate::{
    durations::saturating_micros,
    error::Error,
    key::Key,
    store::{
        backend::NodeId,
        redis::{
            RedisBackend, call_execution::ResendPolicy, reply_reader::ReplyReader, script_sources,
        },
        tasks::RunToken,
    },
};

impl RedisBackend {
    pub(super) async fn call_idle_poll(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        extension: Duration,
    ) -> Result<bool, Error> {
        let [waiting, running, idle] =
            ["z", "zl", "zw"].map(|kind| self.keys.queue_key(&queue, kind, ""));
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(waiting).arg(running);
        // `XX`: a worker that is not in the set was woken or passed over, which must not be undone.
        pipe.cmd("ZADD").arg(idle).arg("XX").arg("INCR").arg(saturating_micros(extension));
        pipe.arg(format!("{node}:{worker}"));
        // A second copy would extend it once more. The poll that follows an error finds out.
        let replies = self
            .run_write_pipeline(queue.shard(), "still_idle", &pipe, ResendPolicy::Never)
            .await?;
        Ok(matches!(&replies[..], [Value::Int(0), idle_until] if *idle_until != Value::Nil))
    }

    pub(super) async fn renew_task_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> Result<Vec<bool>, Error> {
        let mut args = vec![number_arg(saturating_micros(lease))];
        args.extend(runs.iter().map(|run| run.to_member().into_bytes()));
        let keys = [self.keys.queue_key(&queue, "zl", "")];
        let reply =
            self.call_script(queue.shard(), &script_sources::TASKS_RENEW, &keys, &args).await?;
        let renewed = ReplyReader::new("tasks_renew", reply).read_text()?;
        Ok(renewed.bytes().map(|b| b == b'1').collect())
    }
}
