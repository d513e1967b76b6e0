//! Locks of processes that have gone.

use std::time::Duration;

use crate::{
    key::Key,
    store::{AcquireCommand, AcquireReply, LockMode, LockToken, Store},
};

/// Acquires the lock for 10 s as a process does that is killed then: it neither renews nor releases
/// it.
pub(crate) async fn acquire_as_killed_process(store: &Store, key: Key) {
    let killed = store.as_another_process();
    let command = AcquireCommand {
        key,
        token: LockToken::new(killed.node()),
        mode: LockMode::Exclusive,
        lease: Duration::from_secs(10),
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    };
    let reply = killed.backend().acquire(command).await.expect("the store is in this process");
    assert!(matches!(reply, AcquireReply::Granted { .. }), "{reply:?}");
}
