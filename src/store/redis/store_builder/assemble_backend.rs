//! Assembly of a `RedisBackend` from validated settings: its lanes, and the batchers of each lane.
//! Nothing is connected yet.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        RedisBackend,
        batcher::{BatchTransport, CallBatcher},
        charge_transport::ChargeTransport,
        claim_settle_transport::ClaimSettleTransport,
        connection_lanes::ConnectionLanes,
        enqueue_transport::EnqueueTransport,
        lane_breaker_and_probe::LaneBreaker,
        lock_transport::LockTransport,
        ping_and_failover_watch::PingAndFailoverWatch,
        replica_acks::ReplicaAcks,
        script_sources::{CHARGE_BATCH, CLAIM_SETTLE_BATCH, ENQUEUE_JOBS, LOCK_BATCH, TASKS_PUSH},
        task_push_transport::TaskPushTransport,
    },
    StoreBuilder,
};
use crate::{
    error::Error,
    store::{key_names::KeyNames, random_hex_id},
};

/// Longest namespace, in bytes.
const MAX_NAMESPACE_LEN: usize = 32;

impl StoreBuilder {
    /// Creates the backend without connecting.
    pub(super) fn assemble_backend(self) -> Result<RedisBackend, Error> {
        let (target, url_namespace) = self.source.into_target(self.overrides, self.deadline)?;
        let namespace = validate_namespace(self.namespace.or(url_namespace))?;
        if self.deadline < Duration::from_millis(1) {
            return Err(Error::config("a store needs a deadline of at least 1 ms"));
        }
        if !(1..=8).contains(&self.connections) {
            return Err(Error::config("a store needs 1 to 8 connections"));
        }
        let keys = KeyNames::new(&namespace);
        let keys = if target.is_clustered() { keys.clustered() } else { keys };
        let lanes = Arc::new(ConnectionLanes::new(
            &target,
            &keys,
            self.connections,
            self.deadline,
            self.writes_on_connect,
        ));
        let assembly = BatcherAssembly { lanes: &lanes, keys: &keys, deadline: self.deadline };
        Ok(RedisBackend {
            enqueue_batchers: assembly.enqueue_batchers(),
            claim_settle_batchers: assembly.claim_settle_batchers(),
            task_push_batchers: assembly.task_push_batchers(),
            // 0 marks an empty slot of the store's memory of pushes.
            next_push_sequence: 1.into(),
            charge_batchers: assembly.charge_batchers(),
            lock_batchers: assembly.lock_batchers(),
            lane_breakers: LaneBreaker::for_lanes(&lanes, &keys, self.deadline),
            replica_acks: ReplicaAcks::new(
                &target,
                &lanes,
                &keys,
                self.deadline,
                self.replicas_on_disk,
            ),
            _failover_watch: PingAndFailoverWatch::spawn(&target, &lanes, self.deadline),
            lanes,
            target,
            keys,
            deadline: self.deadline,
        })
    }
}

/// Common parts of all batchers of a backend.
struct BatcherAssembly<'a> {
    lanes: &'a Arc<ConnectionLanes>,
    keys: &'a KeyNames,
    deadline: Duration,
}

impl BatcherAssembly<'_> {
    fn lock_batchers(&self) -> Vec<CallBatcher<LockTransport>> {
        let (lanes, keys) = (self.lanes, self.keys);
        self.batchers(LOCK_BATCH.name, lanes.lane_count(), |lane| LockTransport {
            lanes: Arc::clone(lanes),
            lane,
            keys: keys.clone(),
        })
    }

    /// Returns one batcher for each shard of a cluster, and a single one otherwise.
    fn charge_batchers(&self) -> Vec<CallBatcher<ChargeTransport>> {
        let (lanes, keys) = (self.lanes, self.keys);
        let batcher_count = if keys.is_clustered() { lanes.lane_count() } else { 1 };
        self.batchers(CHARGE_BATCH.name, batcher_count, |lane| ChargeTransport {
            lanes: Arc::clone(lanes),
            lane,
            keys: keys.clone(),
        })
    }

    fn claim_settle_batchers(&self) -> Vec<CallBatcher<ClaimSettleTransport>> {
        let (lanes, keys) = (self.lanes, self.keys);
        self.batchers(CLAIM_SETTLE_BATCH.name, lanes.lane_count(), |lane| ClaimSettleTransport {
            lanes: Arc::clone(lanes),
            lane,
            keys: keys.clone(),
        })
    }

    fn enqueue_batchers(&self) -> Vec<CallBatcher<EnqueueTransport>> {
        let (lanes, keys) = (self.lanes, self.keys);
        self.batchers(ENQUEUE_JOBS.name, lanes.lane_count(), |lane| EnqueueTransport {
            lanes: Arc::clone(lanes),
            lane,
            keys: keys.clone(),
        })
    }

    fn task_push_batchers(&self) -> Vec<CallBatcher<TaskPushTransport>> {
        let (lanes, keys) = (self.lanes, self.keys);
        let process_id = random_hex_id();
        self.batchers(TASKS_PUSH.name, lanes.lane_count(), |lane| TaskPushTransport {
            lanes: Arc::clone(lanes),
            lane,
            keys: keys.clone(),
            process_id: Arc::clone(&process_id),
        })
    }

    /// Returns a batcher for each of the first `lane_count` lanes.
    fn batchers<F: BatchTransport>(
        &self,
        script_name: &'static str,
        lane_count: usize,
        transport: impl Fn(usize) -> F,
    ) -> Vec<CallBatcher<F>> {
        let batcher = |lane| CallBatcher::new(transport(lane), script_name, self.deadline);
        (0..lane_count).map(batcher).collect()
    }
}

fn validate_namespace(namespace: Option<String>) -> Result<String, Error> {
    let Some(namespace) = namespace else {
        tracing::info!("no namespace given, using `default`; add ?ns=NAME to the store's URL");
        return Ok("default".to_owned());
    };
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if namespace.is_empty()
        || namespace.len() > MAX_NAMESPACE_LEN
        || !namespace.bytes().all(is_allowed)
    {
        return Err(Error::config(
            "a namespace has 1 to 32 of the characters a-z, A-Z, 0-9, _ and -",
        ));
    }
    Ok(namespace)
}
