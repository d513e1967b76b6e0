//! Payloads at rest: sealed, if the store has keys.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    key::Key,
    seal::{SealContext, UnsealError, open, seal},
    store::{Store, TaskId},
};

/// A pause within this: the task is left to another worker meanwhile.
const RETURN_DELAY_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Where a payload belongs: sealed, it opens nowhere else.
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

/// How long a task is left to the others that has been due for so long: it doubles as time goes by.
pub(super) fn return_delay(age: Duration) -> Duration {
    let [least, most] = RETURN_DELAY_RANGE;
    age.clamp(least, most)
}

/// For a run: what can't be opened anywhere is a payload that can't be read. `Err`: another worker may be able to;
/// how long it is left to the others.
pub(super) fn open_for_run(
    store: &Store,
    queue: &Key,
    id: &TaskId,
    payload: &Bytes,
    due_us: u64,
) -> Result<Bytes, Duration> {
    match open_payload(store, queue, id, payload) {
        Ok(payload) => Ok(payload),
        // Nothing of it: what is not sealed where all has to be might else be run.
        Err(UnsealError::Corrupt) => Ok(Bytes::new()),
        Err(UnsealError::NewerVersion | UnsealError::UnknownKey) => {
            tracing::error!(task = ?id, "a task is sealed with a key that is not here: it waits for another worker");
            // By this process's clock, where the store has another one; no more than a pause hangs on that.
            let late = store.backend().estimated_now_us().saturating_sub(due_us);
            Err(return_delay(Duration::from_micros(late)))
        }
    }
}
