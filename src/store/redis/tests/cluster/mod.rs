//! A store on a real cluster: all nodes are used, slots move during use, and nodes fail.

mod frozen_node_quotas;
mod healthy_cluster;
mod master_failover;
mod node_outage;
mod plain_channels;
mod redirects;
mod request_load;
mod slot_migration;
mod wakeup_channels;
mod wakeup_listener;

use std::time::Duration;

pub(super) use self::wakeup_listener::WakeupListener;
use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind},
    key::{Key, SHARD_COUNT},
    store::{
        Store,
        backend::{
            AcquireCommand, ChargeCommand, EnqueueCommand, JobId, JobPolicy, LockMode, LockToken,
            StorageLimits,
        },
        rate::{ChargeItem, QuotaRule},
    },
};

const LEASE: Duration = Duration::from_secs(20);

/// Returns one key for each of `count` shards.
pub(super) fn keys_in_distinct_shards(count: u16) -> Vec<Key> {
    let key_of_shard = |shard: u16| {
        (0..).map(|n: u32| Key::custom(&n.to_string())).find(|key| key.shard() == shard)
    };
    (0..SHARD_COUNT).step_by(usize::from(SHARD_COUNT / count)).filter_map(key_of_shard).collect()
}

/// Repeats a call while the store is unavailable, as an application would.
pub(super) async fn retry_while_unavailable<T>(
    mut call: impl AsyncFnMut() -> Result<T, Error>,
) -> T {
    for _ in 0..3000 {
        match call().await {
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => return other.expect("a step that is right"),
        }
    }
    panic!("the store does not come back")
}

pub(super) fn acquire_command(key: &Key, token: &LockToken) -> AcquireCommand {
    AcquireCommand {
        key: key.clone(),
        token: token.clone(),
        mode: LockMode::Exclusive,
        lease: LEASE,
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    }
}

pub(super) fn charge_command(subject: &Key, limit: u64) -> ChargeCommand {
    let rule = QuotaRule::Fixed { limit, window: Duration::from_secs(3600) };
    let item =
        ChargeItem { policy: "p".into(), subject: subject.clone(), rule, cost: 1, penalty: None };
    ChargeCommand { tag: subject.clone(), items: [item].into(), repetitions: 1 }
}

/// Enqueue of a job that waits for its lock and may be retried.
pub(super) fn enqueue_command(key: &Key) -> EnqueueCommand {
    EnqueueCommand {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from_static(b"request"),
        policy: JobPolicy { retry_after_crash: true, max_attempts: 9, ..JobPolicy::default() },
        merge: None,
        idempotency_record: None,
        limits: StorageLimits::uniform(1 << 30),
        owner: String::new(),
        route: String::new(),
        webhook: None,
    }
}

/// Asserts that the store check finds nothing on any node.
async fn assert_store_is_clean(store: &Store) {
    for _ in 0..20 {
        let report = retry_while_unavailable(async || store.check().run().await).await;
        assert!(report.is_clean(), "{report}");
        // A scan in which the store learned of a moved slot is incomplete.
        if report.is_complete_scan {
            assert_eq!(report.unsummed_shards, 0, "{report}");
            return;
        }
    }
    panic!("shards do not stay where they are");
}
