//! RL1: the admissions within any period never exceed the bound of their quota.

use std::collections::BTreeMap;

use super::{
    QuotaBound,
    quota_history::{QuotaAdmission, QuotaCheckStats, QuotaHistory},
};
use crate::{Guarantee, NANOS_PER_MILLI, ProcessIncarnation, Violation};

/// Length of the periods that are checked from each request on, in windows. The complete history is
/// checked too.
const MAX_WINDOWS: u64 = 4;

/// Largest excess over a quota in any period; 0 units if there is none.
#[derive(Default)]
struct QuotaExcess {
    units: u64,
    description: Option<String>,
}

impl QuotaHistory {
    /// Checks RL1: the admissions of the store, and those of each process on its own.
    pub(super) fn check_admissions(&self, stats: &mut QuotaCheckStats) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (key, bound) in &self.quotas {
            let admitted = admissions_of_key(&self.admitted, key);
            let sum: u64 = admitted.iter().map(|admission| admission.cost).sum();
            stats.exhausted_keys += u64::from(sum >= bound.max_admitted(0));
            let QuotaExcess { units, description } = self.max_excess(bound, admitted);
            stats.max_excess = stats.max_excess.max(units);
            violations.extend(
                description
                    .map(|cause| Violation::new(Guarantee::RL1, format!("{cause}, key {key}"))),
            );
            let mut by_process: BTreeMap<ProcessIncarnation, Vec<QuotaAdmission>> = BTreeMap::new();
            for admission in admissions_of_key(&self.admitted_locally, key) {
                by_process.entry(admission.incarnation).or_default().push(admission);
            }
            for (ProcessIncarnation { process, generation }, admissions) in by_process {
                let QuotaExcess { units, description } =
                    self.max_excess(&self.quota_share_bound(bound), admissions);
                stats.max_excess = stats.max_excess.max(units);
                violations.extend(description.map(|cause| {
                    let description =
                        format!("{cause}, key {key}, process {process}.{generation} on its own");
                    Violation::new(Guarantee::RL1, description)
                }));
            }
        }
        violations
    }

    /// Returns the bound of one process on its own while the store is unavailable.
    fn quota_share_bound(&self, bound: &QuotaBound) -> QuotaBound {
        let share_of = |limit: u64| self.quota_share.map_or(limit, |share| share.min(limit));
        match *bound {
            QuotaBound::Fixed { limit, window } => {
                QuotaBound::Fixed { limit: share_of(limit), window }
            }
            QuotaBound::Sliding { limit, window } => {
                QuotaBound::Sliding { limit: share_of(limit), window }
            }
            QuotaBound::Gcra { burst, limit, window } => {
                QuotaBound::Gcra { burst: share_of(burst), limit: share_of(limit), window }
            }
        }
    }

    /// Returns the largest excess of any period.
    #[expect(
        clippy::indexing_slicing,
        reason = "a partition point is an index of the list, or its length"
    )]
    fn max_excess(&self, bound: &QuotaBound, mut admissions: Vec<QuotaAdmission>) -> QuotaExcess {
        admissions.sort_by_key(|admission| admission.answered_at);
        let mut starts: Vec<u64> = admissions.iter().map(|admission| admission.sent_at).collect();
        starts.sort_unstable();
        starts.dedup();
        let max_period = bound.window().saturating_mul(MAX_WINDOWS);
        let mut excess = QuotaExcess::default();
        for &from in &starts {
            let mut sum = 0;
            let first = admissions.partition_point(|admission| admission.answered_at < from);
            let in_period =
                admissions[first..].iter().take_while(|a| a.answered_at - from <= max_period);
            for admission in in_period.filter(|admission| admission.sent_at >= from) {
                sum += admission.cost;
                self.compare_with_bound(bound, from, admission.answered_at, sum, &mut excess);
            }
        }
        if let (Some(from), Some(last)) = (starts.first(), admissions.last()) {
            let sum = admissions.iter().map(|admission| admission.cost).sum();
            self.compare_with_bound(bound, *from, last.answered_at, sum, &mut excess);
        }
        excess
    }

    /// Compares the units admitted in a period with the bound, and keeps the larger excess.
    fn compare_with_bound(
        &self,
        bound: &QuotaBound,
        from: u64,
        to: u64,
        sum: u64,
        excess: &mut QuotaExcess,
    ) {
        let losses = self.data_losses.iter().filter(|at| (from..=to).contains(*at)).count() as u64;
        let max_sum = bound.max_admitted(to - from) + bound.max_admitted(0) * losses;
        if sum > max_sum && sum - max_sum > excess.units {
            let period_ms = (to - from) / NANOS_PER_MILLI;
            let description =
                format!("{sum} units admitted within {period_ms} ms, at most {max_sum}");
            *excess = QuotaExcess { units: sum - max_sum, description: Some(description) };
        }
    }
}

fn admissions_of_key(
    admissions: &BTreeMap<String, Vec<QuotaAdmission>>,
    key: &str,
) -> Vec<QuotaAdmission> {
    admissions.get(key).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{super::QuotaEvent, *};
    use crate::format_line;

    fn quota_history_of(bound: QuotaBound, events: &[(usize, u64, QuotaEvent)]) -> QuotaHistory {
        let mut history = QuotaHistory::default();
        history.quotas.insert("k".to_owned(), bound);
        for (process, at, event) in events {
            history.add_log(
                ProcessIncarnation { process: *process, generation: 0 },
                &format_line(at * NANOS_PER_MILLI, 7, event),
            );
        }
        history
    }

    /// Returns `count` admissions at a time, each sent 1 ms before its response.
    fn admissions_at(ms: u64, count: u64) -> Vec<(usize, u64, QuotaEvent)> {
        let sent_at = (ms - 1) * NANOS_PER_MILLI;
        let admission = |n| {
            let process = usize::try_from(n % 3).unwrap();
            (process, ms, QuotaEvent::Admitted { client: 0, key: "k".into(), sent_at, cost: 1 })
        };
        (0..count).map(admission).collect()
    }

    #[test]
    fn exhausted_quotas_are_counted() {
        let exhausted_keys = |count| {
            quota_history_of(GCRA_BOUND, &admissions_at(50, count)).check().0.exhausted_keys
        };
        assert_eq!([exhausted_keys(5), exhausted_keys(6)], [0, 1]);
    }

    fn excess_of(bound: QuotaBound, events: &[(usize, u64, QuotaEvent)]) -> u64 {
        let (stats, violations) = quota_history_of(bound, events).check();
        assert_eq!(stats.max_excess == 0, violations.is_empty());
        assert!(violations.iter().all(|violation| violation.guarantee == Guarantee::RL1));
        stats.max_excess
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
        let repeated =
            |event: QuotaEvent| (0..100).map(|_| (0, 60, event.clone())).collect::<Vec<_>>();
        let events = [
            admissions_at(50, 5),
            repeated(QuotaEvent::Refused { client: 0, key: "k".into() }),
            repeated(QuotaEvent::Failed { client: 0, key: "k".into() }),
        ]
        .concat();
        assert_eq!(excess_of(GCRA_BOUND, &events), 0);
        let (stats, _) = quota_history_of(GCRA_BOUND, &events).check();
        assert_eq!((stats.admitted, stats.refused, stats.errors), (5, 100, 100));
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
        let local = |process, count| {
            let sent_at = 49 * NANOS_PER_MILLI;
            let admission = move |_| {
                let key = "k".into();
                (process, 50, QuotaEvent::AdmittedLocally { client: 0, key, sent_at, cost: 1 })
            };
            (0..count).map(admission).collect::<Vec<_>>()
        };
        assert_eq!(excess_of(GCRA_BOUND, &[local(0, 6), local(1, 6)].concat()), 0);
        assert_eq!(excess_of(GCRA_BOUND, &local(0, 7)), 1);
        let mut history = quota_history_of(GCRA_BOUND, &local(0, 6));
        history.quota_share = Some(2);
        assert_eq!(history.check().0.max_excess, 3);
    }
}
