//! Payloads at rest, sealed if the store has a keyring.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    seal::{SealContext, UnsealError, open, seal},
    store::{Store, TaskId},
};

/// Shortest delay for which a task is left to other workers.
const MIN_RETURN_DELAY: Duration = Duration::from_secs(1);

/// Longest delay for which a task is left to other workers.
const MAX_RETURN_DELAY: Duration = Duration::from_secs(60);

/// Binds a sealed payload to its queue and task: it opens nowhere else.
fn seal_context<'a>(queue: &'a Key, id: &'a TaskId) -> SealContext<'a> {
    SealContext { id: id.as_str(), parent_key: queue.as_str(), kind: "task" }
}

pub(super) fn seal_payload(store: &Store, queue: &Key, id: &TaskId, payload: Bytes) -> Bytes {
    seal(store, seal_context(queue, id), payload)
}

pub(super) fn open_payload(
    store: &Store,
    queue: &Key,
    id: &TaskId,
    payload: &Bytes,
) -> Result<Bytes, UnsealError> {
    open(store, seal_context(queue, id), payload)
}

/// Returns the delay for which a task is left to other workers. `age` is the time since it was due,
/// so the delay doubles with each return.
pub(super) fn return_delay(age: Duration) -> Duration {
    age.clamp(MIN_RETURN_DELAY, MAX_RETURN_DELAY)
}

/// Opens the payload for a run. A payload that no worker can open becomes an unreadable one. `Err`:
/// another worker may be able to open it; the task is left to the others for this delay.
pub(super) fn open_for_run(
    store: &Store,
    queue: &Key,
    id: &TaskId,
    payload: &Bytes,
    due_us: u64,
) -> Result<Bytes, Duration> {
    match open_payload(store, queue, id, payload) {
        Ok(payload) => Ok(payload),
        // Empty, without the stored bytes: an unsealed payload in a sealed queue must not run.
        Err(UnsealError::Corrupt) => Ok(Bytes::new()),
        Err(UnsealError::NewerVersion | UnsealError::UnknownKey) => {
            tracing::error!(
                task = %id.log_prefix(),
                "the task is sealed with a key that this process lacks; it waits for another worker"
            );
            // By this process's clock where the store has another; only the delay depends on it.
            let age_us = store.backend().estimated_now_us().saturating_sub(due_us);
            Err(return_delay(Duration::from_micros(age_us)))
        }
    }
}
