//! Circuit breaker of a lane, and the probe that closes it.
//!
//! A single server has one breaker for all lanes. In a cluster each shard has one: a cluster node
//! may be unavailable while others work, and calls about its shards must not wait for their
//! deadlines each time.

use std::{error::Error as _, sync::Arc, time::Duration};

use redis::RedisError;

use super::{circuit_breaker::CircuitBreaker, connection_lanes::ConnectionLanes};
use crate::error::{Error, ErrorKind};
use crate::store::key_names::KeyNames;

pub(super) struct LaneBreaker {
    circuit: CircuitBreaker,
    lanes: Arc<ConnectionLanes>,
    lane: usize,
    keys: KeyNames,
}

impl LaneBreaker {
    pub(super) fn for_lanes(
        lanes: &Arc<ConnectionLanes>,
        keys: &KeyNames,
        deadline: Duration,
    ) -> Vec<Arc<Self>> {
        // A probe connects and writes; each may take one deadline.
        let lane_count = if keys.is_clustered() { lanes.lane_count() } else { 1 };
        let breaker_of_lane = |lane| {
            let (lanes, keys) = (Arc::clone(lanes), keys.clone());
            Arc::new(Self {
                circuit: CircuitBreaker::new(deadline.saturating_mul(2)),
                lanes,
                lane,
                keys,
            })
        };
        (0..lane_count).map(breaker_of_lane).collect()
    }

    pub(super) fn is_breaker_open(&self) -> bool {
        self.circuit.is_open()
    }

    /// Fails while the breaker is open, unless this call has to serve as the probe.
    pub(super) fn admit(self: &Arc<Self>, name: &'static str) -> Result<(), Error> {
        if self.circuit.is_open() && !self.ensure_probe() {
            let unavailable = || Error::new(ErrorKind::Unavailable, name);
            return Err(self.lanes.last_refusal().unwrap_or_else(unavailable));
        }
        Ok(())
    }

    /// Records the outcome of a call that only a server that runs scripts can answer.
    pub(super) fn record_outcome<T>(self: &Arc<Self>, outcome: &Result<T, Error>) {
        if !self.record_failure(outcome) {
            self.circuit.record_success();
        }
    }

    /// Like [`LaneBreaker::record_outcome`], but ignores successes: for calls that a server answers
    /// even if it runs no scripts. Returns true if the outcome is a failure.
    pub(super) fn record_failure<T>(self: &Arc<Self>, outcome: &Result<T, Error>) -> bool {
        match outcome {
            // The server is available, and still executes calls that free memory.
            Err(e) if is_out_of_memory(e) => false,
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                tracing::debug!(error = %e, "call to the store failed");
                if self.circuit.record_failure() {
                    self.ensure_probe();
                }
                true
            }
            // A configuration error is not an outage. Each caller gets it at the cost of a call.
            _ => false,
        }
    }

    /// Ensures that a probe runs, which connects and writes as calls of the lane do. A server that
    /// only answers pings (a replica, or one that is loading) is still unavailable. The probe ends
    /// with the store. Returns true as [`CircuitBreaker::ensure_probe`] does.
    fn ensure_probe(self: &Arc<Self>) -> bool {
        let lane_breaker = Arc::downgrade(self);
        self.circuit.ensure_probe(move || {
            let lane_breaker = lane_breaker.upgrade();
            async move {
                let Some(lane_breaker) = lane_breaker else { return true };
                let is_healthy =
                    lane_breaker.lanes.is_lane_healthy(lane_breaker.lane, &lane_breaker.keys).await;
                if is_healthy {
                    lane_breaker.circuit.close();
                }
                is_healthy
            }
        })
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    let redis_error = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    redis_error.is_some_and(|error| error.code() == Some("OOM"))
}
