//! L1: after the faults the store serves or refuses each living client within the time limit.

use std::collections::BTreeMap;

use super::QuotaHistory;
use crate::{Guarantee, NANOS_PER_MILLI, ProcessIncarnation, Violation};

/// Time after a stall in which a process is not blamed for failures.
const STALL_GRACE: u64 = 500 * NANOS_PER_MILLI;

/// Source of the response to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerSource {
    /// The store admitted or refused the request.
    Store,
    /// The process admitted it on its own.
    Process,
    /// An error: neither decided.
    Failed,
}

/// Request of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientRequest {
    key: String,
    sent_at: u64,
    /// Time of the response, and its source.
    answer: Option<(u64, AnswerSource)>,
}

/// Requests of each client of each process, in order.
#[derive(Debug, Default)]
pub(super) struct ClientRequests(BTreeMap<(ProcessIncarnation, u64), Vec<ClientRequest>>);

impl ClientRequests {
    pub(super) fn add_request(
        &mut self,
        life: ProcessIncarnation,
        who: u64,
        key: String,
        asked: u64,
    ) {
        self.0.entry((life, who)).or_default().push(ClientRequest {
            key,
            sent_at: asked,
            answer: None,
        });
    }

    pub(super) fn add_answer(
        &mut self,
        life: ProcessIncarnation,
        who: u64,
        at: u64,
        by: AnswerSource,
    ) {
        let last = self.0.get_mut(&(life, who)).and_then(|turns| turns.last_mut());
        if let Some(turn) = last {
            turn.answer = Some((at, by));
        }
    }
}

impl QuotaHistory {
    /// Returns the longest wait of a client after the last fault, and the violations.
    pub(super) fn check_liveness(&self) -> (u64, Vec<Violation>) {
        if self.max_wait == 0 {
            return (0, Vec::new());
        }
        let (mut longest, mut wrong) = (0, Vec::new());
        let mut seen: BTreeMap<ProcessIncarnation, u64> = BTreeMap::new();
        for (life, number) in &self.clients_per_process {
            if !self.killed.contains(life) {
                seen.insert(*life, *number);
            }
        }
        for ((life, who), turns) in &self.clients.0 {
            let Some(missing) = seen.get_mut(life) else { continue };
            *missing = missing.saturating_sub(1);
            match self.check_client(turns) {
                Ok(waited) => longest = longest.max(waited),
                Err(told) => {
                    let ProcessIncarnation { process, generation: number } = life;
                    wrong.push(format!("client {who} of process {process}.{number}: {told}"));
                }
            }
        }
        for (ProcessIncarnation { process, generation: number }, missing) in seen {
            if missing > 0 {
                wrong.push(format!("process {process}.{number}: {missing} clients never ask"));
            }
        }
        (longest, wrong.into_iter().map(|told| Violation::new(Guarantee::L1, told)).collect())
    }

    /// Returns the longest wait of this client: for its first reply of the store after the last
    /// fault, and for each response since then.
    fn check_client(&self, turns: &[ClientRequest]) -> Result<u64, String> {
        let (calm, mut longest, mut served) = (self.last_fault_end, 0, false);
        for ClientRequest { key, sent_at: asked, answer: answered } in turns {
            let Some((at, by)) = *answered else { return Err(format!("{key} is never answered")) };
            if at < calm {
                continue;
            }
            let waited = at - (*asked).max(calm);
            let since = (at - calm) / NANOS_PER_MILLI;
            if waited > self.max_wait {
                return Err(format!("{key} is answered after {} ms", waited / NANOS_PER_MILLI));
            }
            longest = longest.max(waited);
            if by == AnswerSource::Store && !served {
                longest = longest.max(at - calm);
                served = true;
            }
            let late = at - calm > self.max_wait && !self.is_stalled(*asked, at);
            if late && (by != AnswerSource::Store || !served) {
                return Err(format!(
                    "{key} has no answer of the store {since} ms after the faults"
                ));
            }
        }
        if served && longest <= self.max_wait {
            return Ok(longest);
        }
        Err(format!("first served {} ms after the faults", longest / NANOS_PER_MILLI))
    }

    /// Returns true if a process was stalled in this period.
    fn is_stalled(&self, from: u64, to: u64) -> bool {
        let near = |&(began, ended): &(u64, u64)| from < ended + STALL_GRACE && began < to;
        self.stalls.iter().any(near)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{QuotaBound, QuotaEvent},
        *,
    };
    use crate::format_line;

    const FIRST_INCARNATION: ProcessIncarnation = ProcessIncarnation { process: 0, generation: 0 };

    /// The last fault ended at 1,000 ms, and a client may wait for 100 ms.
    fn check_client_events(clients: u64, events: &[(u64, QuotaEvent)]) -> Vec<String> {
        let mut history = QuotaHistory::default();
        (history.last_fault_end, history.max_wait) =
            (1000 * NANOS_PER_MILLI, 100 * NANOS_PER_MILLI);
        history
            .quotas
            .insert("k".into(), QuotaBound::Fixed { limit: 1000, window: NANOS_PER_MILLI });
        let text: String =
            events.iter().map(|(at, event)| format_line(at * NANOS_PER_MILLI, 7, event)).collect();
        history.add_log(FIRST_INCARNATION, &text);
        history.clients_per_process.insert(FIRST_INCARNATION, clients);
        let wrong = history.check().1;
        assert!(wrong.iter().all(|wrong| wrong.guarantee == Guarantee::L1));
        wrong.into_iter().map(|wrong| wrong.description).collect()
    }

    fn requested_event(at: u64) -> (u64, QuotaEvent) {
        (at, QuotaEvent::Requested(0, "k".into()))
    }

    fn refused_event(at: u64) -> (u64, QuotaEvent) {
        (at, QuotaEvent::Refused(0, "k".into()))
    }

    fn failed_event(at: u64) -> (u64, QuotaEvent) {
        (at, QuotaEvent::Failed(0, "k".into()))
    }

    #[test]
    fn l1_client_served_within_the_limit_is_not_reported() {
        assert_eq!(
            check_client_events(
                1,
                &[
                    requested_event(900),
                    failed_event(1010),
                    requested_event(1020),
                    refused_event(1090)
                ]
            )
            .len(),
            0
        );
        assert_eq!(
            check_client_events(
                1,
                &[
                    requested_event(900),
                    refused_event(910),
                    requested_event(920),
                    refused_event(1050)
                ]
            )
            .len(),
            0
        );
    }

    #[test]
    fn l1_missing_or_late_response_is_reported() {
        assert_eq!(
            check_client_events(
                1,
                &[requested_event(900), refused_event(1050), requested_event(1060)]
            )
            .len(),
            1
        );
        assert_eq!(check_client_events(1, &[requested_event(900), refused_event(1101)]).len(), 1);
        assert_eq!(
            check_client_events(
                1,
                &[
                    requested_event(1010),
                    refused_event(1020),
                    requested_event(1030),
                    refused_event(1140)
                ]
            )
            .len(),
            1
        );
    }

    /// A single client that gets only errors is a violation.
    #[test]
    fn l1_errors_after_the_time_limit_are_reported() {
        let mut events = vec![requested_event(900), refused_event(1001)];
        events.extend([requested_event(1150), failed_event(1160)]);
        assert_eq!(check_client_events(1, &events).len(), 1);
        let only =
            [requested_event(1010), failed_event(1020), requested_event(1030), failed_event(1040)];
        assert_eq!(check_client_events(1, &only).len(), 1);
        let local = (1160, QuotaEvent::AdmittedLocally(0, "k".into(), 1150 * NANOS_PER_MILLI, 1));
        assert_eq!(
            check_client_events(
                1,
                &[requested_event(900), refused_event(1001), requested_event(1150), local]
            )
            .len(),
            1
        );
    }

    #[test]
    fn l1_client_without_later_requests_is_reported() {
        assert_eq!(check_client_events(1, &[requested_event(900), refused_event(910)]).len(), 1);
        assert_eq!(check_client_events(2, &[requested_event(900), refused_event(1010)]).len(), 1);
        assert_eq!(check_client_events(1, &[]).len(), 1);
    }

    #[test]
    fn l1_killed_or_stalled_process_is_excused() {
        let mut events = vec![
            requested_event(900),
            refused_event(1001),
            (1155, QuotaEvent::Stalled(1120 * NANOS_PER_MILLI)),
        ];
        events.extend([requested_event(1150), failed_event(1160)]);
        assert_eq!(check_client_events(1, &events).len(), 0);
        let mut history = QuotaHistory::default();
        (history.last_fault_end, history.max_wait) = (1, 1);
        history
            .add_log(FIRST_INCARNATION, &format_line(5, 7, &QuotaEvent::Requested(0, "k".into())));
        assert_eq!(history.check().1.len(), 1);
        history.killed.insert(FIRST_INCARNATION);
        assert_eq!(history.check().1.len(), 0);
    }
}
