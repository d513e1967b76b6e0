//! Construction of the Redis backend: its lanes, and the batchers before each lane.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        RedisBackend,
        batcher::CallBatcher,
        charge_transport::ChargeTransport,
        claim_settle_transport::ClaimSettleTransport,
        connection_lanes::ConnectionLanes,
        connection_monitor::ConnectionMonitor,
        enqueue_transport::EnqueueTransport,
        lane_health::LaneHealth,
        lock_transport::LockTransport,
        replica_acks::ReplicaAcks,
        scripts::{CHARGE_BATCH, ENQUEUE_BATCH, LOCK_BATCH, RUN_BATCH, TASKS_PUSH},
        task_push_transport::TaskPushTransport,
    },
    StoreBuilder,
};
use crate::{
    error::Error,
    store::{backend::random_hex_id, key_names::KeyNames},
};

/// Longest namespace, in bytes.
const MAX_NAMESPACE_LEN: usize = 32;

impl StoreBuilder {
    /// Creates the backend without connecting.
    pub(super) fn build(self) -> Result<RedisBackend, Error> {
        let (target, named) = self.source.into_target(self.overrides, self.deadline)?;
        let namespace = validate_namespace(self.namespace.or(named))?;
        if self.deadline < Duration::from_millis(1) {
            return Err(Error::config("a store needs a deadline of at least 1 ms"));
        }
        if !(1..=8).contains(&self.connections) {
            return Err(Error::config("a store needs 1 to 8 connections"));
        }
        let keys = KeyNames::new(&namespace);
        let keys = if target.is_clustered() { keys.clustered() } else { keys };
        let lanes = Arc::new(ConnectionLanes::new(&target, &keys, self.connections, self.deadline));
        let combiner = |lane| {
            let wire = LockTransport { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            CallBatcher::new(wire, LOCK_BATCH.name, self.deadline)
        };
        let together = if keys.is_clustered() { lanes.lane_count() } else { 1 };
        let charges = |lane| {
            let charges = ChargeTransport { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            CallBatcher::new(charges, CHARGE_BATCH.name, self.deadline)
        };
        let runs = |lane| {
            let runs = ClaimSettleTransport { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            CallBatcher::new(runs, RUN_BATCH.name, self.deadline)
        };
        let enqueues = |lane| {
            let enqueues = EnqueueTransport { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            CallBatcher::new(enqueues, ENQUEUE_BATCH.name, self.deadline)
        };
        let process = random_hex_id();
        let pushes = |lane| {
            let process = Arc::clone(&process);
            let pushes = TaskPushTransport {
                lanes: Arc::clone(&lanes),
                lane,
                keys: keys.clone(),
                process_id: process,
            };
            CallBatcher::new(pushes, TASKS_PUSH.name, self.deadline)
        };
        Ok(RedisBackend {
            enqueue_batchers: (0..lanes.lane_count()).map(enqueues).collect(),
            run_batchers: (0..lanes.lane_count()).map(runs).collect(),
            push_batchers: (0..lanes.lane_count()).map(pushes).collect(),
            // 0 marks an empty slot of the store's memory of pushes.
            next_push: 1.into(),
            charge_batchers: (0..together).map(charges).collect(),
            lock_batchers: (0..lanes.lane_count()).map(combiner).collect(),
            lane_health: LaneHealth::for_lanes(&lanes, &keys, self.deadline),
            replica_acks: ReplicaAcks::new(
                &target,
                &lanes,
                &keys,
                self.deadline,
                self.replicas_on_disk,
            ),
            _failover_monitor: ConnectionMonitor::spawn(&target, &lanes, self.deadline),
            lanes,
            target,
            keys,
            deadline: self.deadline,
        })
    }
}

fn validate_namespace(namespace: Option<String>) -> Result<String, Error> {
    let Some(namespace) = namespace else {
        tracing::info!("no namespace given, using `default`; add ?ns=NAME to the store's URL");
        return Ok("default".to_owned());
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if namespace.is_empty() || namespace.len() > MAX_NAMESPACE_LEN || !namespace.bytes().all(plain)
    {
        return Err(Error::config(
            "a namespace has 1 to 32 of the characters a-z, A-Z, 0-9, _ and -",
        ));
    }
    Ok(namespace)
}
