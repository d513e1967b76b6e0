//! Push of a task, sent in a batch with others of its lane.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind},
    store::{
        redis::{
            RedisBackend, batcher::CallReply, script_sources, task_push_transport::QueuedTaskPush,
        },
        tasks::{TaskPushCommand, TaskPushOutcome},
    },
};

impl RedisBackend {
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    pub(super) async fn push_in_batch(
        &self,
        call: TaskPushCommand,
    ) -> Result<TaskPushOutcome, Error> {
        let shard = call.queue.shard();
        self.check_breaker(shard, script_sources::TASKS_PUSH.name)?;
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let queued_push =
            QueuedTaskPush::new(call, self.next_push_sequence.fetch_add(1, Ordering::Relaxed));
        let outcome = self.task_push_batchers[self.lanes.lane_of_shard(shard)]
            .call(queued_push, deadline)
            .await;
        self.record_outcome((shard, script_sources::TASKS_PUSH.name), started_at, &outcome);
        let CallReply { first, attempts, .. } = outcome?;
        match first {
            // An earlier copy may still arrive, and be stored if by then there is room or the
            // unique key is free.
            Ok(TaskPushOutcome::Full | TaskPushOutcome::Duplicate(_)) if attempts > 1 => {
                Err(Error::new(ErrorKind::Timeout, script_sources::TASKS_PUSH.name))
            }
            outcome => outcome,
        }
    }
}
