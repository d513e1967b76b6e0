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

/// Calls per request, including retries, refusals and unsuccessful polls. Histories take 3 to 3.5.
const MAX_CALLS_PER_REQUEST: u64 = 6;

/// Calls of a process at its start and after each connection loss.
const CALLS_PER_PROCESS: u64 = 32;

/// Result of a fleet of deferral.
#[derive(Debug)]
pub struct DeferredReport {
    /// Counts of the checked records.
    pub stats: DeferredCheckStats,
    /// Numbers of calls and requests.
    pub cost_summary: String,
    /// Violations; empty if all checks passed.
    pub violations: Vec<Violation>,
    /// Requests that got 202 and are unknown at the end.
    pub lost_requests: usize,
    /// Number of jobs in each final state.
    pub final_states: BTreeMap<String, usize>,
    /// Folder of the logs, if there are violations.
    pub log_folder: Option<PathBuf>,
}

impl DeferredReport {
    /// Fails the test if there are violations.
    ///
    /// # Panics
    ///
    /// If there are violations.
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
        let lines =
            vec![format!("{:?}; {:?}; {}", self.stats, self.final_states, self.cost_summary)];
        let (violations, log_folder) = (self.violations.clone(), self.log_folder.clone());
        write!(f, "{}", crate::fleet::HistoryReport { lines, violations, log_folder })
    }
}

impl<G: RedisTopology> JobFleet<G> {
    /// Waits until all jobs have ended and checks the history. At least this process must run.
    pub async fn finish_and_check(mut self, node: usize) -> DeferredReport {
        let mut report = self.check_history(node).await;
        report.log_folder = self.close(report.violations.is_empty());
        report
    }

    pub(super) async fn check_history(&mut self, node: usize) -> DeferredReport {
        self.wait_for_all_requests(node).await;
        // Counted before the store check, which makes many calls.
        let (cost_summary, cost_violation) = self.check_cost();
        // Runs while the processes work: jobs that change state meanwhile must not be reported as
        // lost.
        let store_faults = self.find_store_faults().await.into_iter();
        let mut violations: Vec<_> = store_faults
            .map(|description| Violation { guarantee: Guarantee::N1, description })
            .collect();
        violations.extend(cost_violation);
        violations.extend(self.check_idle().await);
        let registers = self.domain.read_registers().await;
        let mut history = std::mem::take(&mut *self.domain.history.lock());
        let recorded = self.recorded_history();
        (history.runs, history.stalls) = (recorded.runs, recorded.stalls);
        history.registers = registers;
        self.take_disturbances().add_to_history(&mut history);
        let is_unknown = |id: &String| {
            let last = history.observed_statuses.get(id).and_then(|observed| observed.last());
            last.is_none_or(|observed| observed.state.is_empty())
        };
        let lost_requests = history
            .accepted
            .iter()
            .filter(|accepted| accepted.is_certain && is_unknown(&accepted.id))
            .count();
        let (stats, history_violations) = history.check();
        violations.extend(history_violations);
        let mut final_states = BTreeMap::new();
        for observed in history.observed_statuses.values().filter_map(|observed| observed.last()) {
            *final_states.entry(format!("{} {}", observed.state, observed.reason)).or_default() +=
                1;
        }
        DeferredReport {
            stats,
            cost_summary,
            violations,
            lost_requests,
            final_states,
            log_folder: None,
        }
    }

    /// Returns the findings of the store check.
    async fn find_store_faults(&self) -> Vec<String> {
        match self.store().check().run().await {
            Ok(report) => report.faults().map(ToString::to_string).collect(),
            Err(error) => vec![format!("no pass over the store: {error}")],
        }
    }

    /// Polls each id until its job has ended or the time limit is reached, which the check reports.
    async fn wait_for_all_requests(&self, node: usize) {
        let ids: Vec<_> = {
            let history = self.domain.history.lock();
            history
                .accepted
                .iter()
                .map(|accepted| (accepted.id.clone(), accepted.is_certain))
                .collect()
        };
        let deadline = tokio::time::Instant::now() + COMPLETION_TIMEOUT;
        for (id, is_certain) in ids {
            loop {
                let status = self.query_status(node, &id).await;
                let is_lost = status.state.is_empty() && !is_certain;
                if status.is_final() || is_lost || tokio::time::Instant::now() > deadline {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Returns the number of calls, and a violation if there are too many. A cluster is not
    /// checked, because an operation on several shards takes several calls there.
    fn check_cost(&self) -> (String, Option<Violation>) {
        let (calls, requests) = (self.script_call_count(), self.sent_requests());
        let process_count = self.all_incarnations().len() as u64;
        let cost_summary =
            format!("{calls} calls for {requests} requests to {process_count} processes");
        let violation = check_command_cost(
            calls.saturating_sub(process_count * CALLS_PER_PROCESS),
            requests,
            MAX_CALLS_PER_REQUEST,
        );
        (cost_summary, violation.filter(|_| self.server.single_server().is_some()))
    }
}
