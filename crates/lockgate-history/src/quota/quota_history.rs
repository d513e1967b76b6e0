//! `QuotaHistory`, the merged logs of rate limits, and RL1: admissions never exceed the quotas.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    QuotaBound, QuotaEvent,
    client_requests::{AnswerSource, ClientRequests},
    quota_ledger::QuotaLedger,
};
use crate::{Guarantee, NANOS_PER_MILLI, ProcessIncarnation, Violation, parse_lines};

/// Length of the periods that are checked from each request on, in windows. The complete history is
/// checked too.
const MAX_WINDOWS: u64 = 4;

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
    admitted_locally: BTreeMap<String, Vec<QuotaAdmission>>,
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
    pub fn add_log(&mut self, life: ProcessIncarnation, text: &str) {
        self.clients_per_process.entry(life).or_default();
        for (told, event) in parse_lines(text) {
            let Ok(event) = event.parse() else { continue };
            let mut by = |who, by| self.clients.add_answer(life, who, told, by);
            match event {
                QuotaEvent::Requested(who, key) => self.clients.add_request(life, who, key, told),
                QuotaEvent::Admitted(who, key, sent, cost) => {
                    by(who, AnswerSource::Store);
                    self.admitted.entry(key).or_default().push(QuotaAdmission {
                        incarnation: life,
                        sent_at: sent,
                        answered_at: told,
                        cost,
                    });
                }
                QuotaEvent::AdmittedLocally(who, key, sent, cost) => {
                    by(who, AnswerSource::Process);
                    self.admitted_locally.entry(key).or_default().push(QuotaAdmission {
                        incarnation: life,
                        sent_at: sent,
                        answered_at: told,
                        cost,
                    });
                }
                QuotaEvent::Refused(who, _) => {
                    by(who, AnswerSource::Store);
                    self.refused_count += 1;
                }
                QuotaEvent::Failed(who, _) => {
                    by(who, AnswerSource::Failed);
                    self.error_count += 1;
                }
                QuotaEvent::CostLimit(_, key, most) => self.ledger.add_cost_limit(key, told, most),
                QuotaEvent::SpentRead(_, key, sent, spent) => {
                    self.ledger.add_reading(key, sent, told, spent);
                }
                QuotaEvent::Stalled(since) => self.stalls.push((since, told)),
            }
        }
    }

    /// Checks RL1, RL2 and L1.
    #[must_use]
    pub fn check(&self) -> (QuotaCheckStats, Vec<Violation>) {
        let count = |all: &BTreeMap<String, Vec<QuotaAdmission>>| {
            all.values().map(|all| all.len() as u64).sum()
        };
        let mut looked = QuotaCheckStats {
            admitted: count(&self.admitted),
            admitted_locally: count(&self.admitted_locally),
            refused: self.refused_count,
            errors: self.error_count,
            ..QuotaCheckStats::default()
        };
        let mut wrong;
        (looked.longest_wait, wrong) = self.check_liveness();
        wrong.extend(self.check_ledger(&mut looked));
        for (key, limit) in &self.quotas {
            let of = |all: &BTreeMap<String, Vec<QuotaAdmission>>| {
                all.get(key).cloned().unwrap_or_default()
            };
            let sum: u64 = of(&self.admitted).iter().map(|entry| entry.cost).sum();
            looked.exhausted_keys += u64::from(sum >= limit.max_admitted(0));
            let (over, shown) = self.max_excess(limit, of(&self.admitted));
            looked.max_excess = looked.max_excess.max(over);
            wrong.extend(
                shown.map(|shown| Violation::new(Guarantee::RL1, format!("{key}: {shown}"))),
            );
            let mut each: BTreeMap<ProcessIncarnation, Vec<QuotaAdmission>> = BTreeMap::new();
            for entry in of(&self.admitted_locally) {
                each.entry(entry.incarnation).or_default().push(entry);
            }
            for (ProcessIncarnation { process, generation: number }, entries) in each {
                let (over, shown) = self.max_excess(&self.quota_share_bound(limit), entries);
                looked.max_excess = looked.max_excess.max(over);
                wrong.extend(shown.map(|shown| {
                    let told = format!("{key}: process {process}.{number} alone: {shown}");
                    Violation::new(Guarantee::RL1, told)
                }));
            }
        }
        (looked, wrong)
    }

    /// Returns the bound of one process on its own while the store is unavailable.
    fn quota_share_bound(&self, limit: &QuotaBound) -> QuotaBound {
        let part = |limit: u64| self.quota_share.map_or(limit, |share| share.min(limit));
        match *limit {
            QuotaBound::Fixed { limit, window } => QuotaBound::Fixed { limit: part(limit), window },
            QuotaBound::Sliding { limit, window } => {
                QuotaBound::Sliding { limit: part(limit), window }
            }
            QuotaBound::Gcra { burst, limit, window } => {
                QuotaBound::Gcra { burst: part(burst), limit: part(limit), window }
            }
        }
    }

    /// Returns the largest excess of any period, and a sentence about it.
    #[expect(
        clippy::indexing_slicing,
        reason = "a point of partition is a place in it, or its end"
    )]
    fn max_excess(
        &self,
        limit: &QuotaBound,
        mut entries: Vec<QuotaAdmission>,
    ) -> (u64, Option<String>) {
        entries.sort_by_key(|entry| entry.answered_at);
        let mut begins: Vec<u64> = entries.iter().map(|entry| entry.sent_at).collect();
        begins.sort_unstable();
        begins.dedup();
        let far = limit.window().saturating_mul(MAX_WINDOWS);
        let mut worst: (u64, Option<String>) = (0, None);
        let mut judge = |from: u64, to: u64, sum: u64| {
            let anew =
                self.data_losses.iter().filter(|at| (from..=to).contains(*at)).count() as u64;
            let may = limit.max_admitted(to - from) + limit.max_admitted(0) * anew;
            if sum > may && sum - may > worst.0 {
                let ms = (to - from) / NANOS_PER_MILLI;
                let shown = format!("{sum} let in within {ms} ms, where {may} may be");
                worst = (sum - may, Some(shown));
            }
        };
        for &from in &begins {
            let mut sum = 0;
            let first = entries.partition_point(|entry| entry.answered_at < from);
            let near = entries[first..].iter().take_while(|entry| entry.answered_at - from <= far);
            for entry in near.filter(|entry| entry.sent_at >= from) {
                sum += entry.cost;
                judge(from, entry.answered_at, sum);
            }
        }
        if let (Some(from), Some(last)) = (begins.first(), entries.last()) {
            judge(*from, last.answered_at, entries.iter().map(|entry| entry.cost).sum());
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_line;

    fn quota_history_of(limit: QuotaBound, events: &[(usize, u64, QuotaEvent)]) -> QuotaHistory {
        let mut history = QuotaHistory::default();
        history.quotas.insert("k".to_owned(), limit);
        for (process, at, event) in events {
            history.add_log(
                ProcessIncarnation { process: *process, generation: 0 },
                &format_line(at * NANOS_PER_MILLI, 7, event),
            );
        }
        history
    }

    /// This number of admissions at a time, each sent 1 ms before its response.
    fn admissions_at(ms: u64, many: u64) -> Vec<(usize, u64, QuotaEvent)> {
        let one = |n| {
            (
                usize::try_from(n % 3).unwrap(),
                ms,
                QuotaEvent::Admitted(0, "k".into(), (ms - 1) * NANOS_PER_MILLI, 1),
            )
        };
        (0..many).map(one).collect()
    }

    #[test]
    fn exhausted_quotas_are_counted() {
        let spent =
            |many| quota_history_of(GCRA_BOUND, &admissions_at(50, many)).check().0.exhausted_keys;
        assert_eq!([spent(5), spent(6)], [0, 1]);
    }

    fn excess_of(limit: QuotaBound, events: &[(usize, u64, QuotaEvent)]) -> u64 {
        let (looked, wrong) = quota_history_of(limit, events).check();
        assert_eq!(looked.max_excess == 0, wrong.is_empty());
        assert!(wrong.iter().all(|wrong| wrong.guarantee == Guarantee::RL1));
        looked.max_excess
    }

    const FIXED_BOUND: QuotaBound = QuotaBound::Fixed { limit: 10, window: 1000 * NANOS_PER_MILLI };
    const GCRA_BOUND: QuotaBound =
        QuotaBound::Gcra { burst: 5, limit: 10, window: 1000 * NANOS_PER_MILLI };

    #[test]
    fn rl1_admission_beyond_the_touched_windows_is_reported() {
        assert_eq!(
            excess_of(FIXED_BOUND, &[admissions_at(999, 10), admissions_at(1001, 10)].concat()),
            0
        );
        assert_eq!(
            excess_of(FIXED_BOUND, &[admissions_at(999, 10), admissions_at(1001, 11)].concat()),
            1
        );
        // Three windows.
        assert_eq!(
            excess_of(
                FIXED_BOUND,
                &[admissions_at(999, 10), admissions_at(1500, 10), admissions_at(2100, 10)]
                    .concat()
            ),
            0
        );
    }

    #[test]
    fn rl1_admissions_beyond_the_gcra_bound_are_reported() {
        assert_eq!(excess_of(GCRA_BOUND, &admissions_at(50, 6)), 0);
        assert_eq!(excess_of(GCRA_BOUND, &admissions_at(50, 8)), 2);
        assert_eq!(
            excess_of(GCRA_BOUND, &[admissions_at(50, 5), admissions_at(550, 5)].concat()),
            0
        );
        assert_eq!(
            excess_of(GCRA_BOUND, &[admissions_at(50, 5), admissions_at(550, 9)].concat()),
            3
        );
    }

    /// Refused and unanswered requests were not admitted.
    #[test]
    fn rl1_refusals_and_errors_are_not_admissions() {
        let none = |event: QuotaEvent| (0..100).map(|_| (0, 60, event.clone())).collect::<Vec<_>>();
        let all = [
            admissions_at(50, 5),
            none(QuotaEvent::Refused(0, "k".into())),
            none(QuotaEvent::Failed(0, "k".into())),
        ]
        .concat();
        assert_eq!(excess_of(GCRA_BOUND, &all), 0);
        let (looked, _) = quota_history_of(GCRA_BOUND, &all).check();
        assert_eq!((looked.admitted, looked.refused, looked.errors), (5, 100, 100));
    }

    #[test]
    fn rl1_data_loss_allows_the_quota_again() {
        let mut history = quota_history_of(
            FIXED_BOUND,
            &[admissions_at(999, 10), admissions_at(1001, 25)].concat(),
        );
        assert_eq!(history.check().0.max_excess, 15);
        history.data_losses.push(1000 * NANOS_PER_MILLI);
        assert_eq!(history.check().0.max_excess, 0);
    }

    /// While the store is unavailable, each process is limited to its share.
    #[test]
    fn rl1_local_admissions_are_limited_per_process() {
        let local = |process, many| {
            let one = move |_| {
                (process, 50, QuotaEvent::AdmittedLocally(0, "k".into(), 49 * NANOS_PER_MILLI, 1))
            };
            (0..many).map(one).collect::<Vec<_>>()
        };
        assert_eq!(excess_of(GCRA_BOUND, &[local(0, 6), local(1, 6)].concat()), 0);
        assert_eq!(excess_of(GCRA_BOUND, &local(0, 7)), 1);
        let mut history = quota_history_of(GCRA_BOUND, &local(0, 6));
        history.quota_share = Some(2);
        assert_eq!(history.check().0.max_excess, 3);
    }
}
