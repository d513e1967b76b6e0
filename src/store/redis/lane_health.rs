//! Whether calls go out at all: the breaker of a lane, and what it looks at.
//!
//! One server has one, in front of all its lanes. In a cluster each shard has one: a node may be away while others
//! are there, and a call about a shard that nobody answers for must not wait for its deadline each time.

use std::{error::Error as _, sync::Arc, time::Duration};

use redis::RedisError;

use super::{ConnectionLanes, KeyNames, circuit_breaker::CircuitBreaker};
use crate::error::{Error, ErrorKind};

pub(super) struct LaneHealth {
    breaker: CircuitBreaker,
    lanes: Arc<ConnectionLanes>,
    lane: usize,
    keys: KeyNames,
}

impl LaneHealth {
    pub(super) fn for_lanes(
        lanes: &Arc<ConnectionLanes>,
        keys: &KeyNames,
        deadline: Duration,
    ) -> Vec<Arc<Self>> {
        // A look makes a connection, and writes: a deadline each.
        let number = if keys.is_clustered() { lanes.lane_count() } else { 1 };
        let one = |lane| {
            let (lanes, keys) = (Arc::clone(lanes), keys.clone());
            Arc::new(Self {
                breaker: CircuitBreaker::new(deadline.saturating_mul(2)),
                lanes,
                lane,
                keys,
            })
        };
        (0..number).map(one).collect()
    }

    pub(super) fn is_breaker_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// While the breaker is open nothing is sent, unless nobody else looks whether the server is back.
    pub(super) fn admit(self: &Arc<Self>, name: &'static str) -> Result<(), Error> {
        if self.breaker.is_open() && !self.ensure_probe() {
            let unavailable = || Error::new(ErrorKind::Unavailable, name);
            return Err(self.lanes.last_refusal().unwrap_or_else(unavailable));
        }
        Ok(())
    }

    /// Tells the breaker how a call went that is answered where scripts are run.
    pub(super) fn record_outcome<T>(self: &Arc<Self>, outcome: &Result<T, Error>) {
        if !self.record_failure(outcome) {
            self.breaker.record_success();
        }
    }

    /// As [`LaneHealth::record_outcome`], of a call that is answered where no script is run, too; true if it was a failure.
    pub(super) fn record_failure<T>(self: &Arc<Self>, outcome: &Result<T, Error>) -> bool {
        match outcome {
            // It is there, and takes what makes room.
            Err(e) if is_out_of_memory(e) => false,
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                tracing::debug!(error = %e, "store call failed");
                if self.breaker.record_failure() {
                    self.ensure_probe();
                }
                true
            }
            // A configuration fault is no outage: it is told to every caller, at the same price.
            _ => false,
        }
    }

    /// Looks whether the lane could work again: connect and write, as it does. A server that only answers
    /// pings (a replica, one that is loading) is still away. Nobody looks for a store that is gone.
    fn ensure_probe(self: &Arc<Self>) -> bool {
        let health = Arc::downgrade(self);
        self.breaker.ensure_probe(move || {
            let health = health.upgrade();
            async move {
                let Some(health) = health else { return true };
                let answers = health.lanes.is_lane_healthy(health.lane, &health.keys).await;
                if answers {
                    health.breaker.close();
                }
                answers
            }
        })
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    answer.is_some_and(|answer| answer.code() == Some("OOM"))
}
