//! Refresh of the shard map.
//!
//! A node that is partitioned from the others would report an outdated map. So several nodes are
//! queried at once, and the map that most of them report is used. Nodes that do not answer soon
//! after the first are not awaited. The next redirect corrects a wrong map.

use std::{
    future::{Future, ready},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{ClusterState, ClusterTarget, Endpoint, connection_cache, topology_view::TopologyView};
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
        let mut looking = self.0.refresh_state.lock();
        looking.is_requested = true;
        // A task counts as finished if its runtime has ended. If its runtime is blocked, for
        // example by a handler, it makes no progress and is replaced. `stall_timeout` allows for a
        // refresh as long as its slowest node may take.
        let silent =
            looking.last_progress.is_some_and(|sign| sign.elapsed() > self.stall_timeout());
        let runs = looking.task.as_ref().is_some_and(|task| !task.is_finished());
        if !looking.is_finished && runs && !silent {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        (looking.is_finished, looking.last_progress) = (false, Some(Instant::now()));
        looking.generation += 1;
        let looks = self.clone().run_refreshes(looking.generation);
        if let Some(before) = looking.task.replace(runtime.spawn(looks)) {
            before.abort();
        }
        true
    }

    /// Like [`request_refresh`](Self::request_refresh), unless a refresh began within
    /// `MIN_REFRESH_INTERVAL`.
    pub(in super::super::super) fn request_refresh_throttled(&self) {
        let last = self.0.refresh_state.lock().last_progress;
        if last.is_none_or(|last| last.elapsed() > MIN_REFRESH_INTERVAL) {
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
        let mut looked = self.0.refreshes_done.subscribe();
        let next = self.0.refresh_state.lock().started_count + 1;
        if self.request_refresh() {
            self.0.refresh_signal.notify_one();
            // The caller has its own deadline.
            let _ = looked.wait_for(|done| *done >= next).await;
        }
    }

    /// Refreshes the map until no refresh is requested.
    async fn run_refreshes(self, turn: u64) {
        let [mut pause, longest] = REFRESH_DELAYS;
        while let Some(number) = self.begin_refresh(turn) {
            self.refresh().await;
            self.0.refreshes_done.send_replace(number);
            let _ = timeout(pause, self.0.refresh_signal.notified()).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Returns the number of the refresh that begins now; `None` if none is requested or the task
    /// was replaced.
    fn begin_refresh(&self, turn: u64) -> Option<u64> {
        let mut looking = self.0.refresh_state.lock();
        if looking.generation != turn {
            return None;
        }
        (looking.is_finished, looking.last_progress) =
            (!looking.is_requested, Some(Instant::now()));
        std::mem::take(&mut looking.is_requested).then(|| {
            looking.started_count += 1;
            looking.started_count
        })
    }

    async fn refresh(&self) {
        let mut said = self.query_nodes().await;
        let mut map = self.0.map.lock();
        map.refresh_count += 1;
        let Some(view) = said.take_winner() else {
            map.failure = said.failure;
            return;
        };
        map.failure = None;
        map.nodes = view.nodes;
        map.node_timeout = said.node_timeout.or(map.node_timeout);
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
        let asked = candidates.into_iter().map(|node| {
            let own = self.clone();
            async move {
                let answer = timeout(own.0.query_timeout, own.query_node(&node)).await;
                answer.unwrap_or(Err(ConnectError::Unavailable))
            }
        });
        let mut answers: FuturesUnordered<_> = asked.collect();
        let said = self.collect_majority(&mut answers, majority).await;
        // Late answers are awaited too, so that their connections return to the cache.
        let (late, shared) = (answers.for_each(|_| ready(())), Arc::downgrade(&self.0));
        tokio::spawn(async move {
            late.await;
            sleep(connection_cache::MAX_IDLE).await;
            // Keeps the connections that another refresh has used since.
            if let Some(shared) = shared.upgrade() {
                shared.connections.close_idle();
            }
        });
        said
    }

    async fn collect_majority(
        &self,
        answers: &mut FuturesUnordered<impl Future<Output = Result<TopologyView, ConnectError>>>,
        majority: usize,
    ) -> TopologyVotes {
        let (mut said, mut until) = (TopologyVotes::default(), None);
        loop {
            let answer = match until {
                None => answers.next().await,
                Some(until) => timeout_at(until, answers.next()).await.unwrap_or(None),
            };
            match answer {
                Some(Ok(view)) => {
                    until.get_or_insert_with(|| Instant::now() + self.0.query_timeout / 4);
                    if said.add_vote(view) >= majority {
                        return said;
                    }
                }
                Some(Err(failure)) => said.record_failure(failure),
                None => return said,
            }
        }
    }
}

/// Replies of the queried nodes.
#[derive(Default)]
struct TopologyVotes {
    /// Each distinct view, with its number of votes.
    views: Vec<(TopologyView, usize)>,
    failure: Option<ConnectError>,
    /// The shortest reported `cluster-node-timeout`.
    node_timeout: Option<Duration>,
}

impl TopologyVotes {
    /// Adds a view, and returns its number of votes.
    fn add_vote(&mut self, view: TopologyView) -> usize {
        self.node_timeout = self.node_timeout.into_iter().chain(view.node_timeout).min();
        match self.views.iter_mut().find(|(other, _)| other.owners == view.owners) {
            Some((_, votes)) => {
                *votes += 1;
                *votes
            }
            None => {
                self.views.push((view, 1));
                1
            }
        }
    }

    /// Keeps the most severe failure: a configuration error concerns all nodes.
    fn record_failure(&mut self, failure: ConnectError) {
        let told = match (&self.failure, &failure) {
            (None | Some(ConnectError::Unavailable), _) => true,
            (Some(ConnectError::Refused(_)), new) => matches!(new, ConnectError::Config(_)),
            (Some(ConnectError::Config(_)), _) => false,
        };
        if told {
            self.failure = Some(failure);
        }
    }

    /// Takes the view with the most votes; among equals, the one with the most known owners.
    fn take_winner(&mut self) -> Option<TopologyView> {
        let known = |view: &TopologyView| view.owners.iter().flatten().count();
        let views = self.views.drain(..);
        views.max_by_key(|(view, votes)| (*votes, known(view))).map(|(view, _)| view)
    }
}

impl ClusterState {
    /// Stops queries of node settings, because the user lacks the permission.
    pub(super) fn mark_config_unreadable(&self) {
        if self.is_config_readable.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "`CONFIG GET cluster-node-timeout` is refused: assuming 5 s; if it is shorter, \
                 writes that a stalled node acknowledges may be lost; allow `+config|get`"
            );
        }
    }

    /// Returns known nodes and seeds, at most `MAX_QUERIED_NODES`. If there are more, each refresh
    /// takes others.
    fn nodes_to_query(&self) -> Vec<Endpoint> {
        let map = self.map.lock();
        let turned = |nodes: Vec<Endpoint>, from: usize, most: usize| {
            let length = nodes.len();
            nodes.into_iter().cycle().skip(from % length.max(1)).take(most.min(length))
        };
        let mut asked: Vec<Endpoint> =
            turned(map.nodes.clone(), map.refresh_count, MAX_QUERIED_NODES - 1).collect();
        let room = MAX_QUERIED_NODES - asked.len();
        let new: Vec<_> = self.seeds.iter().filter(|node| !asked.contains(node)).cloned().collect();
        asked.extend(turned(new, map.refresh_count, room));
        asked
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
        let nobody = ("127.0.0.1".to_owned(), 1);
        let cluster = ClusterTarget::new(
            vec![nobody],
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(1),
        );
        let runtime = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (still, other) = (runtime(), runtime());
        assert!(still.block_on(async { cluster.request_refresh() }));
        let began = std::time::Instant::now();
        other.block_on(async {
            while timeout(Duration::from_millis(20), cluster.refresh_now()).await.is_err() {
                assert!(began.elapsed() < Duration::from_secs(20), "nobody looks");
            }
        });
        drop(still);
    }

    /// The old task runs until its next `await`.
    #[test]
    fn superseded_refresh_does_not_begin() {
        let nobody = ("127.0.0.1".to_owned(), 1);
        let cluster = ClusterTarget::new(
            vec![nobody],
            Box::new(|_| Err(ConnectError::Unavailable)),
            Duration::from_millis(1),
        );
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(cluster.request_refresh());
            let before = cluster.0.refresh_state.lock().generation;
            cluster.0.refresh_state.lock().is_finished = true;
            assert!(cluster.request_refresh());
            assert_eq!(cluster.begin_refresh(before), None);
            assert_eq!(cluster.begin_refresh(before + 1), Some(1));
        });
    }
}
