//! `DeferredReport`: end of a fleet: whether all requests have ended, the violations, and the
//! number of calls.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use super::{JobFleet, job_domain::COMPLETION_TIMEOUT};
use crate::{
    checker::{
        Guarantee, Violation, deferred::DeferredCheckStats, idle_snapshot::check_command_cost,
    },
    fleet::RedisTopology,
};

/// Calls per request, retries, refusals and the clients that ask in vain included. Histories take 3 to 3.5.
const MAX_CALLS_PER_REQUEST: u64 = 6;

/// Calls of a process for itself: at its start, and after each loss of its connections.
const CALLS_PER_PROCESS: u64 = 32;

/// What came of it.
#[derive(Debug)]
pub struct DeferredReport {
    /// What was looked at.
    pub stats: DeferredCheckStats,
    /// What was asked of the server, and for how much.
    pub cost_summary: String,
    /// What is wrong; empty if all is well.
    pub violations: Vec<Violation>,
    /// Requests that were answered 202, and of which nobody knows at the end.
    pub lost_requests: usize,
    /// How often each final state was reached.
    pub final_states: BTreeMap<String, usize>,
    /// Where the logs are, if something is wrong.
    pub log_folder: Option<PathBuf>,
}

impl DeferredReport {
    /// Fails the test if something is wrong.
    ///
    /// # Panics
    ///
    /// If something is wrong.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "that all is well is enough for most")]
    pub fn assert_no_violations(self) -> DeferredCheckStats {
        println!("figure: accepted and lost {}", self.lost_requests);
        assert!(self.violations.is_empty(), "{self}");
        self.stats
    }
}

impl fmt::Display for DeferredReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told =
            vec![format!("{:?}; {:?}; {}", self.stats, self.final_states, self.cost_summary)];
        let (wrong, logs) = (self.violations.clone(), self.log_folder.clone());
        write!(
            f,
            "{}",
            crate::fleet::HistoryReport { lines: told, violations: wrong, log_folder: logs }
        )
    }
}

impl<G: RedisTopology> JobFleet<G> {
    /// Waits until all has ended, and has it checked. At least this process has to live.
    pub async fn finish_and_check(mut self, node: usize) -> DeferredReport {
        let mut verdict = self.check_history(node).await;
        verdict.log_folder = self.close(verdict.violations.is_empty());
        verdict
    }

    pub(super) async fn check_history(&mut self, node: usize) -> DeferredReport {
        self.wait_for_all_requests(node).await;
        // Before the pass, which asks a lot.
        let (cost, too_much) = self.check_cost();
        // While the processes still work: what moves meanwhile must not be taken for lost.
        let broken = self.find_store_faults().await.into_iter();
        let mut wrong: Vec<_> =
            broken.map(|told| Violation { guarantee: Guarantee::N1, description: told }).collect();
        wrong.extend(too_much);
        wrong.extend(self.check_idle().await);
        let taken = self.domain.read_registers().await;
        let mut history = std::mem::take(&mut *self.domain.history.lock());
        let written = self.recorded_history();
        (history.runs, history.stalls) = (written.runs, written.stalls);
        history.registers = taken;
        self.take_disturbances().add_to_history(&mut history);
        let unknown = |id: &String| {
            let last = history.observed_statuses.get(id).and_then(|seen| seen.last());
            last.is_none_or(|seen| seen.state.is_empty())
        };
        let lost = history.accepted.iter().filter(|one| one.is_certain && unknown(&one.id)).count();
        let (looked, found) = history.check();
        wrong.extend(found);
        let mut states = BTreeMap::new();
        for seen in history.observed_statuses.values().filter_map(|seen| seen.last()) {
            *states.entry(format!("{} {}", seen.state, seen.reason)).or_default() += 1;
        }
        DeferredReport {
            stats: looked,
            cost_summary: cost,
            violations: wrong,
            lost_requests: lost,
            final_states: states,
            log_folder: None,
        }
    }

    /// What a pass over the store finds.
    async fn find_store_faults(&self) -> Vec<String> {
        match self.store().check().run().await {
            Ok(report) => report.faults().map(ToString::to_string).collect(),
            Err(error) => vec![format!("no pass over the store: {error}")],
        }
    }

    /// Asks about each id until it has ended, or until it takes too long: then the check says so.
    async fn wait_for_all_requests(&self, node: usize) {
        let ids: Vec<_> = {
            let history = self.domain.history.lock();
            history
                .accepted
                .iter()
                .map(|accepted| (accepted.id.clone(), accepted.is_certain))
                .collect()
        };
        let until = tokio::time::Instant::now() + COMPLETION_TIMEOUT;
        for (id, sure) in ids {
            loop {
                let seen = self.query_status(node, &id).await;
                let gone = seen.state.is_empty() && !sure;
                if seen.is_final() || gone || tokio::time::Instant::now() > until {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// What it has cost, told; and what is wrong with that. In a cluster it is told alone: there what is about several
    /// shards is several calls.
    fn check_cost(&self) -> (String, Option<Violation>) {
        let (calls, requests) = (self.script_call_count(), self.sent_requests());
        let lives = self.all_incarnations().len() as u64;
        let told = format!("{calls} calls for {requests} requests to {lives} processes");
        let too_much = check_command_cost(
            calls.saturating_sub(lives * CALLS_PER_PROCESS),
            requests,
            MAX_CALLS_PER_REQUEST,
        );
        (told, too_much.filter(|_| self.server.single_server().is_some()))
    }
}
