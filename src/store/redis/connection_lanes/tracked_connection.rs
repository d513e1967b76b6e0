//! `TrackedConnection`: a connection of a lane, its timeouts, and when it is given up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Cmd;
use tokio::time::{Instant, timeout};

use super::connection_silence_guard::ConnectionSilenceGuard;
use crate::store::redis::{
    call_fault::classify_outcome, cluster_node_lanes::ClusterNode, target::RedisConnection,
};

/// Consecutive timeouts after which a socket counts as dead: a half-open one would time out for
/// ever.
const MAX_CONSECUTIVE_TIMEOUTS: u32 = 3;

/// Connection of a lane, with the flags that decide if it may be used.
#[derive(Clone)]
pub(in super::super) struct TrackedConnection {
    pub(in super::super) connection: RedisConnection,
    /// Cluster node at the other end, if any.
    pub(in super::super) node: Option<Arc<ClusterNode>>,
    /// Run id of the cluster node, if it reports one.
    pub(in super::super) run_id: Option<Arc<str>>,
    pub(super) dead: Arc<AtomicBool>,
    pub(super) consecutive_timeouts: Arc<AtomicU32>,
    /// Present if the server may be replaced while it is paused.
    pub(super) silence_guard: Option<Arc<ConnectionSilenceGuard>>,
    /// Time of the checkout; calls are sent after it. Current only if there is a
    /// `silence_guard`.
    pub(super) checked_out_at: Instant,
    /// Counter of the lanes' [`connection_resets`](super::ConnectionLanes::connection_resets).
    pub(super) connection_resets: Arc<AtomicU64>,
}

impl TrackedConnection {
    pub(in super::super) fn is_dead(&self) -> bool {
        if self.silence_guard.as_ref().is_some_and(|guard| guard.is_expired(Instant::now())) {
            self.abandon();
        }
        self.dead.load(Ordering::Acquire)
    }

    /// Returns a clone to send a call on now; `None` if the connection must not be used.
    pub(in super::super) fn checkout(&self) -> Option<Self> {
        let Some(guard) = &self.silence_guard else {
            return (!self.is_dead()).then(|| self.clone());
        };
        let now = Instant::now();
        if guard.is_expired(now) {
            self.abandon();
        }
        (!self.dead.load(Ordering::Acquire)).then(|| Self { checked_out_at: now, ..self.clone() })
    }

    /// Returns true if the connection was abandoned and its server may have been replaced: its
    /// answers must be rejected.
    pub(in super::super) fn is_untrusted(&self) -> bool {
        self.silence_guard.is_some() && self.dead.load(Ordering::Acquire)
    }

    pub(in super::super) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Marks the connection as dead after a call without an answer. The call is sent again, but its
    /// first copy may still be delivered by the network.
    pub(in super::super) fn mark_broken(&self) {
        self.mark_dead();
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a reset, because this connection replaces one that has ended.
    pub(super) fn record_replacement(&self) {
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
    }

    /// Records an answer of any kind to a call on this connection.
    pub(in super::super) fn record_answer(&self) {
        if self
            .silence_guard
            .as_ref()
            .is_some_and(|guard| !guard.record_answer(self.checked_out_at))
        {
            self.abandon();
        }
        if self.consecutive_timeouts.load(Ordering::Relaxed) != 0 {
            self.consecutive_timeouts.store(0, Ordering::Relaxed);
        }
    }

    pub(in super::super) fn record_timeout(&self) {
        let timeouts = self.consecutive_timeouts.fetch_add(1, Ordering::Relaxed) + 1;
        // With a guard, one timeout is enough: calls may lie in the socket and run when the
        // server resumes.
        if timeouts >= MAX_CONSECUTIVE_TIMEOUTS || self.silence_guard.is_some() {
            self.abandon();
        }
    }

    fn abandon(&self) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        self.connection_resets.fetch_add(1, Ordering::AcqRel);
        if let Some(node) = &self.node {
            node.report_timeout();
        }
    }

    /// Returns true if the write succeeds as a call would.
    pub(in super::super) async fn accepts_write(
        mut self,
        write: &Cmd,
        call_timeout: Duration,
    ) -> bool {
        let answer = timeout(call_timeout, write.query_async::<u64>(&mut self.connection)).await;
        let Ok(answer) = answer else {
            // The next check uses another connection: this one may be broken although the server is
            // well.
            self.abandon();
            return false;
        };
        classify_outcome(&self, answer).is_ok()
    }

    /// Sends a `PING` if the connection has been silent and needs a sign of life.
    pub(super) async fn ping_if_idle(self, call_timeout: Duration) {
        let Some(mut checked_out) = self.checkout() else { return };
        let Some(guard) = checked_out
            .silence_guard
            .clone()
            .filter(|guard| guard.needs_ping(checked_out.checked_out_at))
        else {
            return;
        };
        let ping_timeout = call_timeout.min(guard.max_silence);
        let ping = redis::cmd("PING");
        match timeout(ping_timeout, checked_out.connection.send_packed_command(&ping)).await {
            Ok(Ok(_)) => checked_out.record_answer(),
            // After any error, the next connection goes to the master of that time.
            Ok(Err(_)) => checked_out.mark_dead(),
            Err(_) => checked_out.record_timeout(),
        }
    }
}
