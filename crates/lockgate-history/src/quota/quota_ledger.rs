//! `QuotaLedger`: readings of spent units and the largest costs of requests, and RL2, which
//! compares the readings with the admissions and these costs.

use std::collections::BTreeMap;

use super::{QuotaCheckStats, QuotaHistory};
use crate::{Guarantee, NANOS_PER_MILLI, Violation};

/// Reply of the store about the units spent of a key.
#[derive(Debug)]
struct SpentReading {
    sent_at: u64,
    answered_at: u64,
    spent: u64,
}

/// Readings and cost limits of each key.
#[derive(Debug, Default)]
pub(super) struct QuotaLedger {
    /// Time of the log entry, which precedes the request, and the most that the request may cost.
    cost_limits: BTreeMap<String, Vec<(u64, u64)>>,
    readings: BTreeMap<String, Vec<SpentReading>>,
}

impl QuotaLedger {
    pub(super) fn add_cost_limit(&mut self, key: String, at: u64, max_cost: u64) {
        self.cost_limits.entry(key).or_default().push((at, max_cost));
    }

    pub(super) fn add_reading(&mut self, key: String, sent_at: u64, answered_at: u64, spent: u64) {
        let reading = SpentReading { sent_at, answered_at, spent };
        self.readings.entry(key).or_default().push(reading);
    }
}

impl QuotaHistory {
    /// Checks RL2. The window of a key must not end between its first admission and the last
    /// reading.
    pub(super) fn check_ledger(&self, stats: &mut QuotaCheckStats) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (key, readings) in &self.ledger.readings {
            for reading in readings {
                let (min, max) = (self.min_spent(key, reading), self.max_spent(key, reading));
                let spent = reading.spent;
                stats.readings += 1;
                stats.tight_readings += u64::from(spent > 0 && (spent == min || spent == max));
                if (min..=max).contains(&spent) {
                    continue;
                }
                let cause =
                    if spent < min { "units refunded twice" } else { "units charged twice" };
                let read_ms = reading.answered_at / NANOS_PER_MILLI;
                let description = format!(
                    "{cause}, key {key}: {spent} units spent at {read_ms} ms, between {min} and {max} \
                     allowed"
                );
                violations.push(Violation::new(Guarantee::RL2, description));
            }
        }
        violations
    }

    /// Returns the least that must be spent: admissions before the reading was requested, unless
    /// the store has lost them. Each is charged and at most adjusted once.
    fn min_spent(&self, key: &str, reading: &SpentReading) -> u64 {
        let last_data_loss = self.data_losses.iter().filter(|at| **at <= reading.answered_at).max();
        let admissions = self.admitted.get(key).into_iter().flatten();
        let counted = admissions.filter(|admission| {
            admission.answered_at < reading.sent_at
                && last_data_loss.is_none_or(|lost_at| *lost_at < admission.sent_at)
        });
        counted.map(|admission| admission.cost).sum()
    }

    /// Returns the most that may be spent: requests sent after the store replied cannot be charged.
    fn max_spent(&self, key: &str, reading: &SpentReading) -> u64 {
        let cost_limits = self.ledger.cost_limits.get(key).into_iter().flatten();
        let sent_before = cost_limits.filter(|(at, _)| *at <= reading.answered_at);
        sent_before.map(|(_, max_cost)| max_cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::QuotaEvent, *};
    use crate::{ProcessIncarnation, format_line};

    const TEST_INCARNATION: ProcessIncarnation = ProcessIncarnation { process: 0, generation: 0 };

    fn cost_limit_event(time_ms: u64, max_cost: u64) -> (u64, QuotaEvent) {
        (time_ms, QuotaEvent::CostLimit { client: 0, key: "k".into(), max_cost })
    }

    fn admitted_event(sent_ms: u64, answered_ms: u64, cost: u64) -> (u64, QuotaEvent) {
        let sent_at = sent_ms * NANOS_PER_MILLI;
        (answered_ms, QuotaEvent::Admitted { client: 0, key: "k".into(), sent_at, cost })
    }

    fn spent_read_event(sent_ms: u64, answered_ms: u64, spent: u64) -> (u64, QuotaEvent) {
        let sent_at = sent_ms * NANOS_PER_MILLI;
        (answered_ms, QuotaEvent::SpentRead { client: 1, key: "k".into(), sent_at, spent })
    }

    fn quota_history_of(events: &[(u64, QuotaEvent)]) -> QuotaHistory {
        let mut history = QuotaHistory::default();
        let text: String =
            events.iter().map(|(at, event)| format_line(at * NANOS_PER_MILLI, 7, event)).collect();
        history.add_log(TEST_INCARNATION, &text);
        history
    }

    /// Returns the number of violations and of tight readings.
    fn check_ledger_events(events: &[(u64, QuotaEvent)]) -> (usize, u64) {
        let (stats, violations) = quota_history_of(events).check();
        assert!(violations.iter().all(|violation| violation.guarantee == Guarantee::RL2));
        (violations.len(), stats.tight_readings)
    }

    /// One request may be refunded by one unit, the other one costs 1 to 3: 1 to 4 may be spent.
    #[test]
    fn rl2_reading_outside_its_bounds_is_reported() {
        let requests = [
            cost_limit_event(10, 1),
            admitted_event(10, 20, 0),
            cost_limit_event(30, 3),
            admitted_event(30, 40, 1),
        ];
        let check =
            |n| check_ledger_events(&[&requests[..], &[spent_read_event(50, 60, n)]].concat());
        assert_eq!(check(0), (1, 0), "refunded twice");
        assert_eq!(check(1), (0, 1));
        assert_eq!(check(2), (0, 0), "within the bounds");
        assert_eq!(check(4), (0, 1));
        assert_eq!(check(5), (1, 0), "charged twice");
    }

    /// A request without a response may have been charged or not.
    #[test]
    fn rl2_unanswered_request_may_be_charged_or_not() {
        let requests = [cost_limit_event(10, 2), admitted_event(10, 55, 2)];
        for n in 0..=2 {
            assert_eq!(
                check_ledger_events(&[&requests[..], &[spent_read_event(50, 60, n)]].concat()).0,
                0
            );
        }
        assert_eq!(
            check_ledger_events(&[cost_limit_event(10, 2), spent_read_event(50, 60, 2)]).0,
            0
        );
        assert_eq!(
            check_ledger_events(&[spent_read_event(50, 60, 2), cost_limit_event(61, 2)]).0,
            1,
            "it was requests for later"
        );
    }

    #[test]
    fn rl2_data_loss_lowers_the_required_spending() {
        let mut history = quota_history_of(&[
            cost_limit_event(10, 1),
            admitted_event(10, 20, 1),
            cost_limit_event(30, 1),
            admitted_event(30, 40, 1),
            spent_read_event(50, 60, 1),
        ]);
        assert_eq!(history.check().1.len(), 1);
        history.data_losses.push(25 * NANOS_PER_MILLI);
        assert_eq!(history.check().1.len(), 0);
    }
}
