//! What a store on Redis is made of: lanes, and a queue for each kind of call before each of them.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        Charges, Combiner, Enqueues, Health, KeyNames, Lanes, Pushes, Redis, Replicas, Runs, Watch,
        Wire,
        script::{CALLS, CHARGE, ENQUEUE, PUSH_TASKS, RUNS},
    },
    StoreBuilder,
};
use crate::{error::Error, store::backend::random_hex_id};

/// Longest namespace, in bytes.
const NAMESPACE: usize = 32;

impl StoreBuilder {
    /// Nothing is connected yet.
    pub(super) fn build(self) -> Result<Redis, Error> {
        let (target, named) = self.origin.target(self.given, self.deadline)?;
        let namespace = checked_namespace(self.namespace.or(named))?;
        if self.deadline < Duration::from_millis(1) {
            return Err(Error::config("a store needs a deadline of at least 1 ms"));
        }
        if !(1..=8).contains(&self.connections) {
            return Err(Error::config("a store needs 1 to 8 connections"));
        }
        let keys = KeyNames::new(&namespace);
        let keys = if target.is_apart() { keys.clustered() } else { keys };
        let lanes = Arc::new(Lanes::new(&target, &keys, self.connections, self.deadline));
        let combiner = |lane| {
            let wire = Wire { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(wire, CALLS.name, self.deadline)
        };
        let together = if keys.is_clustered() { lanes.number() } else { 1 };
        let charges = |lane| {
            let charges = Charges { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(charges, CHARGE.name, self.deadline)
        };
        let runs = |lane| {
            let runs = Runs { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(runs, RUNS.name, self.deadline)
        };
        let enqueues = |lane| {
            let enqueues = Enqueues { lanes: Arc::clone(&lanes), lane, keys: keys.clone() };
            Combiner::new(enqueues, ENQUEUE.name, self.deadline)
        };
        let process = random_hex_id();
        let pushes = |lane| {
            let process = Arc::clone(&process);
            let pushes = Pushes { lanes: Arc::clone(&lanes), lane, keys: keys.clone(), process };
            Combiner::new(pushes, PUSH_TASKS.name, self.deadline)
        };
        Ok(Redis {
            enqueues: (0..lanes.number()).map(enqueues).collect(),
            runs: (0..lanes.number()).map(runs).collect(),
            pushes: (0..lanes.number()).map(pushes).collect(),
            // A slot that holds nothing holds 0.
            pushed: 1.into(),
            charges: (0..together).map(charges).collect(),
            combiners: (0..lanes.number()).map(combiner).collect(),
            health: Health::all(&lanes, &keys, self.deadline),
            replicas: Replicas::new(&target, &lanes, &keys, self.deadline, self.replicas_on_disk),
            _watch: Watch::of(&target, &lanes, self.deadline),
            lanes,
            target,
            keys,
            deadline: self.deadline,
        })
    }
}

fn checked_namespace(namespace: Option<String>) -> Result<String, Error> {
    let Some(namespace) = namespace else {
        tracing::info!("no namespace given: using `default` (add ?ns=NAME to the store's URL)");
        return Ok("default".to_owned());
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if namespace.is_empty() || namespace.len() > NAMESPACE || !namespace.bytes().all(plain) {
        return Err(Error::config("a namespace is 1 to 32 of a-z, A-Z, 0-9, _ and -"));
    }
    Ok(namespace)
}
