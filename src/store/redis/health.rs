//! Whether calls go out at all: the breaker of a lane, and what it looks at.
//!
//! One server has one, in front of all its lanes. In a cluster each shard has one: a node may be away while others
//! are there, and a call about a shard that nobody answers for must not wait for its deadline each time.

use std::{error::Error as _, sync::Arc, time::Duration};

use redis::RedisError;

use super::{KeyNames, Lanes, breaker::Breaker};
use crate::error::{Error, ErrorKind};

pub(super) struct Health {
    breaker: Breaker,
    lanes: Arc<Lanes>,
    lane: usize,
    keys: KeyNames,
}

impl Health {
    pub(super) fn all(lanes: &Arc<Lanes>, keys: &KeyNames, deadline: Duration) -> Vec<Arc<Self>> {
        // A look makes a connection, and writes: a deadline each.
        let number = if keys.is_clustered() { lanes.number() } else { 1 };
        let one = |lane| {
            let (lanes, keys) = (Arc::clone(lanes), keys.clone());
            Arc::new(Self { breaker: Breaker::new(deadline.saturating_mul(2)), lanes, lane, keys })
        };
        (0..number).map(one).collect()
    }

    pub(super) fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// While the breaker is open nothing is sent, unless nobody else looks whether the server is back.
    pub(super) fn pass(self: &Arc<Self>, name: &'static str) -> Result<(), Error> {
        if self.breaker.is_open() && !self.probe() {
            let unavailable = || Error::new(ErrorKind::Unavailable, name);
            return Err(self.lanes.refusal().unwrap_or_else(unavailable));
        }
        Ok(())
    }

    /// Tells the breaker how a call went that is answered where scripts are run.
    pub(super) fn note<T>(self: &Arc<Self>, outcome: &Result<T, Error>) {
        if !self.note_failure(outcome) {
            self.breaker.succeeded();
        }
    }

    /// As [`Health::note`], of a call that is answered where no script is run, too; true if it was a failure.
    pub(super) fn note_failure<T>(self: &Arc<Self>, outcome: &Result<T, Error>) -> bool {
        match outcome {
            // It is there, and takes what makes room.
            Err(e) if has_no_room(e) => false,
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                tracing::debug!(error = %e, "store call failed");
                if self.breaker.failed() {
                    self.probe();
                }
                true
            }
            // A configuration fault is no outage: it is told to every caller, at the same price.
            _ => false,
        }
    }

    /// Looks whether the lane could work again: connect and write, as it does. A server that only answers
    /// pings (a replica, one that is loading) is still away. Nobody looks for a store that is gone.
    fn probe(self: &Arc<Self>) -> bool {
        let health = Arc::downgrade(self);
        self.breaker.probe(move || {
            let health = health.upgrade();
            async move {
                let Some(health) = health else { return true };
                let answers = health.lanes.could_work(health.lane, &health.keys).await;
                if answers {
                    health.breaker.close();
                }
                answers
            }
        })
    }
}

fn has_no_room(error: &Error) -> bool {
    let answer = error.source().and_then(|source| source.downcast_ref::<RedisError>());
    answer.is_some_and(|answer| answer.code() == Some("OOM"))
}
