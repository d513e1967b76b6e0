//! RL2: compares the units that the store has counted with the admissions and the requests.

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

#[derive(Debug, Default)]
pub(super) struct QuotaLedger {
    /// Time of the log entry, which precedes the request, and the most that the request may cost.
    cost_limits: BTreeMap<String, Vec<(u64, u64)>>,
    readings: BTreeMap<String, Vec<SpentReading>>,
}

impl QuotaLedger {
    pub(super) fn add_cost_limit(&mut self, key: String, at: u64, most: u64) {
        self.cost_limits.entry(key).or_default().push((at, most));
    }

    pub(super) fn add_reading(&mut self, key: String, sent: u64, told: u64, spent: u64) {
        self.readings.entry(key).or_default().push(SpentReading {
            sent_at: sent,
            answered_at: told,
            spent,
        });
    }
}

impl QuotaHistory {
    /// Checks RL2. The window of a key must not end between its first admission and the last
    /// reading.
    pub(super) fn check_ledger(&self, looked: &mut QuotaCheckStats) -> Vec<Violation> {
        let mut wrong = Vec::new();
        for (key, looks) in &self.ledger.readings {
            for look in looks {
                let (least, most) = (self.min_spent(key, look), self.max_spent(key, look));
                looked.readings += 1;
                let is_bound = look.spent == least || look.spent == most;
                looked.tight_readings += u64::from(look.spent > 0 && is_bound);
                if (least..=most).contains(&look.spent) {
                    continue;
                }
                let what = if look.spent < least { "given back" } else { "charged" };
                let told = format!(
                    "{key}: {} are spent at {} ms, where {least} to {most} may be: something was {what} twice",
                    look.spent,
                    look.answered_at / NANOS_PER_MILLI
                );
                wrong.push(Violation::new(Guarantee::RL2, told));
            }
        }
        wrong
    }

    /// Returns the least that must be spent: admissions before the reading was requested, unless
    /// the store has lost them. Each is charged and at most adjusted once.
    fn min_spent(&self, key: &str, look: &SpentReading) -> u64 {
        let kept = self.data_losses.iter().filter(|at| **at <= look.answered_at).max();
        let known = self.admitted.get(key).into_iter().flatten().filter(|entry| {
            entry.answered_at < look.sent_at
                && kept.is_none_or(|forgotten| *forgotten < entry.sent_at)
        });
        known.map(|entry| entry.cost).sum()
    }

    /// Returns the most that may be spent: requests sent after the store replied cannot be charged.
    fn max_spent(&self, key: &str, look: &SpentReading) -> u64 {
        let asked = self.ledger.cost_limits.get(key).into_iter().flatten();
        asked.filter(|(at, _)| *at <= look.answered_at).map(|(_, most)| most).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::QuotaEvent, *};
    use crate::{ProcessIncarnation, format_line};

    const TEST_INCARNATION: ProcessIncarnation = ProcessIncarnation { process: 0, generation: 0 };

    fn cost_limit_event(at: u64, most: u64) -> (u64, QuotaEvent) {
        (at, QuotaEvent::CostLimit(0, "k".into(), most))
    }

    fn admitted_event(sent: u64, told: u64, least: u64) -> (u64, QuotaEvent) {
        (told, QuotaEvent::Admitted(0, "k".into(), sent * NANOS_PER_MILLI, least))
    }

    fn spent_read_event(sent: u64, told: u64, spent: u64) -> (u64, QuotaEvent) {
        (told, QuotaEvent::SpentRead(1, "k".into(), sent * NANOS_PER_MILLI, spent))
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
        let (looked, wrong) = quota_history_of(events).check();
        assert!(wrong.iter().all(|wrong| wrong.guarantee == Guarantee::RL2));
        (wrong.len(), looked.tight_readings)
    }

    /// One request may be refunded by one unit, the other one costs 1 to 3: 1 to 4 may be spent.
    #[test]
    fn rl2_reading_outside_its_bounds_is_reported() {
        let asked = [
            cost_limit_event(10, 1),
            admitted_event(10, 20, 0),
            cost_limit_event(30, 3),
            admitted_event(30, 40, 1),
        ];
        let told = |n| check_ledger_events(&[&asked[..], &[spent_read_event(50, 60, n)]].concat());
        assert_eq!(told(0), (1, 0), "given back twice");
        assert_eq!(told(1), (0, 1));
        assert_eq!(told(2), (0, 0), "neither of the two shows anything");
        assert_eq!(told(4), (0, 1));
        assert_eq!(told(5), (1, 0), "charged twice");
    }

    /// A request without a response may have been charged or not.
    #[test]
    fn rl2_unanswered_request_may_be_charged_or_not() {
        let asked = [cost_limit_event(10, 2), admitted_event(10, 55, 2)];
        for n in 0..=2 {
            assert_eq!(
                check_ledger_events(&[&asked[..], &[spent_read_event(50, 60, n)]].concat()).0,
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
            "it was asked for later"
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
