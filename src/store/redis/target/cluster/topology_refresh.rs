//! Refresh of the shard map.
//!
//! A node that is partitioned from the others would report an outdated map. So several nodes are
//! queried at once, and the map that most of them report is used. Nodes that do not answer soon
//! after the first are not awaited. The next redirect corrects a wrong map.

use std::{
    future::{Future, ready},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    ClusterState, ClusterTarget, Endpoint, topology_query_connections, topology_view::TopologyView,
    topology_votes::TopologyVotes,
};
use crate::store::redis::target::ConnectError;

/// Maximum number of nodes queried at once.
const MAX_QUERIED_NODES: usize = 5;

/// First and longest pause between two refreshes; it doubles each time. Each shard of an
/// unavailable node requests a refresh.
const REFRESH_DELAYS: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(250)];

/// Minimum time between refreshes that are unlikely to change the map.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// State of the refresh task.
#[derive(Default)]
pub(super) struct TopologyRefresh {
    task: Option<JoinHandle<()>>,
    /// A refresh was requested after the last one began.
    is_requested: bool,
    is_finished: bool,
    /// Generation of the current task. A replaced task may run until its next `await`, and must not
    /// change this state.
    generation: u64,
    /// Number of refreshes begun.
    started_count: u64,
    /// Time of the last sign of progress.
    last_progress: Option<Instant>,
}

impl ClusterTarget {
    /// Requests a refresh, and starts a task unless one runs. Returns false if there is no runtime
    /// for it.
    pub(in super::super::super) fn request_refresh(&self) -> bool {
        let mut state = self.0.refresh_state.lock();
        state.is_requested = true;
        // A task counts as finished if its runtime has ended. If its runtime is blocked, for
        // example by a handler, it makes no progress and is replaced. `stall_timeout` allows for a
        // refresh as long as its slowest node may take.
        let is_stalled =
            state.last_progress.is_some_and(|sign| sign.elapsed() > self.stall_timeout());
        let has_task = state.task.as_ref().is_some_and(|task| !task.is_finished());
        if !state.is_finished && has_task && !is_stalled {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        (state.is_finished, state.last_progress) = (false, Some(Instant::now()));
        state.generation += 1;
        let refreshes = self.clone().run_refreshes(state.generation);
        if let Some(replaced) = state.task.replace(runtime.spawn(refreshes)) {
            replaced.abort();
        }
        true
    }

    /// Like [`request_refresh`](Self::request_refresh), unless a refresh began within
    /// `MIN_REFRESH_INTERVAL`.
    pub(in super::super::super) fn request_refresh_throttled(&self) {
        let last_progress = self.0.refresh_state.lock().last_progress;
        if last_progress.is_none_or(|at| at.elapsed() > MIN_REFRESH_INTERVAL) {
            self.request_refresh();
        }
    }

    /// Returns how long a task may make no progress: twice a refresh with the pause after it.
    fn stall_timeout(&self) -> Duration {
        let [_, pause] = REFRESH_DELAYS;
        self.0.query_timeout.saturating_add(pause).saturating_mul(2)
    }

    /// Waits for the end of a refresh that begins after this call, without a pause before it.
    pub(in super::super::super) async fn refresh_now(&self) {
        let mut refreshes = self.0.refreshes_done.subscribe();
        let next = self.0.refresh_state.lock().started_count + 1;
        if self.request_refresh() {
            self.0.refresh_signal.notify_one();
            // The caller has its own deadline.
            let _ = refreshes.wait_for(|done| *done >= next).await;
        }
    }

    /// Refreshes the map until no refresh is requested.
    async fn run_refreshes(self, generation: u64) {
        let [mut pause, max_pause] = REFRESH_DELAYS;
        while let Some(number) = self.begin_refresh(generation) {
            self.refresh().await;
            self.0.refreshes_done.send_replace(number);
            let _ = timeout(pause, self.0.refresh_signal.notified()).await;
            pause = (pause * 2).min(max_pause);
        }
    }

    /// Returns the number of the refresh that begins now; `None` if none is requested or the task
    /// was replaced.
    fn begin_refresh(&self, generation: u64) -> Option<u64> {
        let mut state = self.0.refresh_state.lock();
        if state.generation != generation {
            return None;
        }
        (state.is_finished, state.last_progress) = (!state.is_requested, Some(Instant::now()));
        std::mem::take(&mut state.is_requested).then(|| {
            state.started_count += 1;
            state.started_count
        })
    }

    async fn refresh(&self) {
        let mut votes = self.query_nodes().await;
        let mut map = self.0.map.lock();
        map.refresh_count += 1;
        let Some(view) = votes.take_winner() else {
            map.failure = votes.failure;
            return;
        };
        map.failure = None;
        map.nodes = view.nodes;
        map.node_timeout = votes.node_timeout.or(map.node_timeout);
        let changed = self.0.update_owners(&mut map, view.owners);
        drop(map);
        if changed {
            tracing::info!("shards moved to other cluster nodes");
            self.0.notify_change();
        }
    }

    /// Queries several nodes until most of them report the same map.
    async fn query_nodes(&self) -> TopologyVotes {
        let candidates = self.0.nodes_to_query();
        self.0.connections.retain_nodes(&candidates);
        let majority = candidates.len() / 2 + 1;
        let queries = candidates.into_iter().map(|node| {
            let cluster = self.clone();
            async move {
                let answer = timeout(cluster.0.query_timeout, cluster.query_node(&node)).await;
                answer.unwrap_or(Err(ConnectError::Unavailable))
            }
        });
        let mut answers: FuturesUnordered<_> = queries.collect();
        let votes = self.collect_majority(&mut answers, majority).await;
        // Late answers are awaited too, so that their connections return to the cache.
        let (late_answers, state) = (answers.for_each(|_| ready(())), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            late_answers.await;
            sleep(topology_query_connections::MAX_IDLE).await;
            // Keeps the connections that another refresh has used since.
            if let Some(state) = state.upgrade() {
                state.connections.close_idle();
            }
        });
        votes
    }

    async fn collect_majority(
        &self,
        answers: &mut FuturesUnordered<impl Future<Output = Result<TopologyView, ConnectError>>>,
        majority: usize,
    ) -> TopologyVotes {
        let (mut votes, mut straggler_deadline) = (TopologyVotes::default(), None);
        loop {
            let answer = match straggler_deadline {
                None => answers.next().await,
                Some(deadline) => timeout_at(deadline, answers.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(view)) => {
                    straggler_deadline
                        .get_or_insert_with(|| Instant::now() + self.0.query_timeout / 4);
                    if votes.add_vote(view) >= majority {
                        return votes;
                    }
                }
                Some(Err(failure)) => votes.record_failure(failure),
                None => return votes,
            }
        }
    }
}

impl ClusterState {
    /// Returns known nodes and seeds, at most `MAX_QUERIED_NODES`. If there are more, each refresh
    /// takes others.
    fn nodes_to_query(&self) -> Vec<Endpoint> {
        let map = self.map.lock();
        let rotated = |nodes: Vec<Endpoint>, offset: usize, max_count: usize| {
            let length = nodes.len();
            nodes.into_iter().cycle().skip(offset % length.max(1)).take(max_count.min(length))
        };
        let mut selected: Vec<Endpoint> =
            rotated(map.nodes.clone(), map.refresh_count, MAX_QUERIED_NODES - 1).collect();
        let remaining = MAX_QUERIED_NODES - selected.len();
        let other_seeds: Vec<_> =
            self.seeds.iter().filter(|seed| !selected.contains(seed)).cloned().collect();
        selected.extend(rotated(other_seeds, map.refresh_count, remaining));
        selected
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{runtime, time::timeout};

    use super::*;

    /// A handler that blocks its thread blocks everything else on its runtime.
    #[test]
    fn refresh_on_stalled_runtime_is_taken_over() {
        let unused_endpoint = ("127.0.0.1".to_owned(), 1);
        let cluster = ClusterTarget::new(
            vec![unused_endpoint],
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(1),
        );
        let runtime = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (stalled, running) = (runtime(), runtime());
        assert!(stalled.block_on(async { cluster.request_refresh() }));
        let started_at = std::time::Instant::now();
        running.block_on(async {
            while timeout(Duration::from_millis(20), cluster.refresh_now()).await.is_err() {
                assert!(started_at.elapsed() < Duration::from_secs(20), "no refresh");
            }
        });
        drop(stalled);
    }

    /// The old task runs until its next `await`.
    #[test]
    fn superseded_refresh_does_not_begin() {
        let unused_endpoint = ("127.0.0.1".to_owned(), 1);
        let cluster = ClusterTarget::new(
            vec![unused_endpoint],
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(1),
        );
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(cluster.request_refresh());
            let generation = cluster.0.refresh_state.lock().generation;
            cluster.0.refresh_state.lock().is_finished = true;
            assert!(cluster.request_refresh());
            assert_eq!(cluster.begin_refresh(generation), None);
            assert_eq!(cluster.begin_refresh(generation + 1), Some(1));
        });
    }
}
