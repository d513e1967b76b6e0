//! `QuotaHistory`: the merged logs of rate limits.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    QuotaBound, QuotaEvent,
    client_liveness::{AnswerSource, ClientRequests},
    quota_ledger::QuotaLedger,
};
use crate::{ProcessIncarnation, Violation, parse_lines};

/// Admission of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuotaAdmission {
    pub(super) incarnation: ProcessIncarnation,
    pub(super) sent_at: u64,
    pub(super) answered_at: u64,
    pub(super) cost: u64,
}

/// Merged logs of rate limits on one clock.
#[derive(Debug, Default)]
pub struct QuotaHistory {
    /// Number of clients of each process. With [`max_wait`](Self::max_wait) each of them has to be
    /// served in the end.
    pub clients_per_process: BTreeMap<ProcessIncarnation, u64>,
    /// Processes that were killed; their clients need no response.
    pub killed: BTreeSet<ProcessIncarnation>,
    /// End of the last fault in ns, from which L1 counts.
    pub last_fault_end: u64,
    /// Longest time in ns from the last fault until the store admits or refuses a client. After
    /// that a client gets no other response. Zero skips the check.
    pub max_wait: u64,
    /// Periods in ns in which a process was stalled, besides those in the logs.
    pub stalls: Vec<(u64, u64)>,
    /// Quota of each key. Keys without a quota are not checked.
    pub quotas: BTreeMap<String, QuotaBound>,
    /// Most that one process may admit on its own in one outage, for each key. `None` is the whole
    /// quota.
    pub quota_share: Option<u64>,
    /// Times in ns at which the store lost its data, so that quotas start again.
    pub data_losses: Vec<u64>,
    pub(super) admitted: BTreeMap<String, Vec<QuotaAdmission>>,
    pub(super) admitted_locally: BTreeMap<String, Vec<QuotaAdmission>>,
    refused_count: u64,
    error_count: u64,
    pub(super) clients: ClientRequests,
    pub(super) ledger: QuotaLedger,
}

/// Statistics of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaCheckStats {
    /// Requests admitted by the store.
    pub admitted: u64,
    /// Requests that processes admitted on their own.
    pub admitted_locally: u64,
    /// Refused requests.
    pub refused: u64,
    /// Requests with an error.
    pub errors: u64,
    /// Largest excess over a quota; zero in a correct history.
    pub max_excess: u64,
    /// Keys with as many admissions as their quotas allow at once; only these keys test the limit.
    pub exhausted_keys: u64,
    /// Readings of the units spent of a key.
    pub readings: u64,
    /// Readings at one of their bounds; only these readings test RL2.
    pub tight_readings: u64,
    /// Longest time in ns that a client was without a reply of the store after the last fault.
    pub longest_wait: u64,
}

impl QuotaHistory {
    /// Adds the log of one process; an incomplete last line is ignored.
    pub fn add_log(&mut self, incarnation: ProcessIncarnation, text: &str) {
        self.clients_per_process.entry(incarnation).or_default();
        for (at, event) in parse_lines(text) {
            if let Ok(event) = event.parse() {
                self.add_event(incarnation, at, event);
            }
        }
    }

    fn add_event(&mut self, incarnation: ProcessIncarnation, at: u64, event: QuotaEvent) {
        let mut add_answer =
            |client, source| self.clients.add_answer(incarnation, client, at, source);
        let admission =
            |sent_at, cost| QuotaAdmission { incarnation, sent_at, answered_at: at, cost };
        match event {
            QuotaEvent::Requested { client, key } => {
                self.clients.add_request(incarnation, client, key, at);
            }
            QuotaEvent::Admitted { client, key, sent_at, cost } => {
                add_answer(client, AnswerSource::Store);
                self.admitted.entry(key).or_default().push(admission(sent_at, cost));
            }
            QuotaEvent::AdmittedLocally { client, key, sent_at, cost } => {
                add_answer(client, AnswerSource::Process);
                self.admitted_locally.entry(key).or_default().push(admission(sent_at, cost));
            }
            QuotaEvent::Refused { client, .. } => {
                add_answer(client, AnswerSource::Store);
                self.refused_count += 1;
            }
            QuotaEvent::Failed { client, .. } => {
                add_answer(client, AnswerSource::Failed);
                self.error_count += 1;
            }
            QuotaEvent::CostLimit { key, max_cost, .. } => {
                self.ledger.add_cost_limit(key, at, max_cost);
            }
            QuotaEvent::SpentRead { key, sent_at, spent, .. } => {
                self.ledger.add_reading(key, sent_at, at, spent);
            }
            QuotaEvent::Stalled { since } => self.stalls.push((since, at)),
        }
    }

    /// Checks RL1, RL2 and L1.
    #[must_use]
    pub fn check(&self) -> (QuotaCheckStats, Vec<Violation>) {
        let count = |admissions: &BTreeMap<String, Vec<QuotaAdmission>>| {
            admissions.values().map(|of_key| of_key.len() as u64).sum()
        };
        let mut stats = QuotaCheckStats {
            admitted: count(&self.admitted),
            admitted_locally: count(&self.admitted_locally),
            refused: self.refused_count,
            errors: self.error_count,
            ..QuotaCheckStats::default()
        };
        let mut violations;
        (stats.longest_wait, violations) = self.check_liveness();
        violations.extend(self.check_ledger(&mut stats));
        violations.extend(self.check_admissions(&mut stats));
        (stats, violations)
    }
}
