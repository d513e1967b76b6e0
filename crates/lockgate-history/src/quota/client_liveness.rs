//! `ClientRequests`: requests of each client with their answers, and L1: after the faults the store
//! serves or refuses each living client within the time limit.

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
        incarnation: ProcessIncarnation,
        client: u64,
        key: String,
        sent_at: u64,
    ) {
        let request = ClientRequest { key, sent_at, answer: None };
        self.0.entry((incarnation, client)).or_default().push(request);
    }

    pub(super) fn add_answer(
        &mut self,
        incarnation: ProcessIncarnation,
        client: u64,
        at: u64,
        source: AnswerSource,
    ) {
        let requests = self.0.get_mut(&(incarnation, client));
        if let Some(request) = requests.and_then(|requests| requests.last_mut()) {
            request.answer = Some((at, source));
        }
    }
}

impl QuotaHistory {
    /// Returns the longest wait of a client after the last fault, and the violations.
    pub(super) fn check_liveness(&self) -> (u64, Vec<Violation>) {
        if self.max_wait == 0 {
            return (0, Vec::new());
        }
        let (mut longest_wait, mut descriptions) = (0, Vec::new());
        let mut missing_clients: BTreeMap<ProcessIncarnation, u64> = BTreeMap::new();
        for (incarnation, client_count) in &self.clients_per_process {
            if !self.killed.contains(incarnation) {
                missing_clients.insert(*incarnation, *client_count);
            }
        }
        for ((incarnation, client), requests) in &self.clients.0 {
            let Some(missing) = missing_clients.get_mut(incarnation) else { continue };
            *missing = missing.saturating_sub(1);
            match self.check_client(requests) {
                Ok(waited) => longest_wait = longest_wait.max(waited),
                Err(cause) => {
                    let ProcessIncarnation { process, generation } = incarnation;
                    descriptions.push(format!(
                        "{cause}, client {client} of process {process}.{generation}"
                    ));
                }
            }
        }
        for (ProcessIncarnation { process, generation }, missing) in missing_clients {
            if missing > 0 {
                descriptions.push(format!(
                    "no requests of {missing} clients of process {process}.{generation}"
                ));
            }
        }
        let violation = |description: String| Violation::new(Guarantee::L1, description);
        (longest_wait, descriptions.into_iter().map(violation).collect())
    }

    /// Returns the longest wait of this client: for its first reply of the store after the last
    /// fault, and for each response since then. Returns the cause of a violation, if there is one.
    fn check_client(&self, requests: &[ClientRequest]) -> Result<u64, String> {
        let (fault_end, mut longest_wait, mut is_served) = (self.last_fault_end, 0, false);
        for ClientRequest { key, sent_at, answer } in requests {
            let Some((at, source)) = *answer else {
                return Err(format!("request unanswered, key {key}"));
            };
            if at < fault_end {
                continue;
            }
            let waited = at - (*sent_at).max(fault_end);
            if waited > self.max_wait {
                let waited_ms = waited / NANOS_PER_MILLI;
                return Err(format!("request answered after {waited_ms} ms, key {key}"));
            }
            longest_wait = longest_wait.max(waited);
            let since_fault = at - fault_end;
            if source == AnswerSource::Store && !is_served {
                longest_wait = longest_wait.max(since_fault);
                is_served = true;
            }
            let is_late = since_fault > self.max_wait && !self.is_stalled(*sent_at, at);
            if is_late && (source != AnswerSource::Store || !is_served) {
                let since_ms = since_fault / NANOS_PER_MILLI;
                return Err(format!(
                    "no answer of the store {since_ms} ms after the faults, key {key}"
                ));
            }
        }
        if is_served && longest_wait <= self.max_wait {
            return Ok(longest_wait);
        }
        Err(format!("first served {} ms after the faults", longest_wait / NANOS_PER_MILLI))
    }

    /// Returns true if a process was stalled in this period.
    fn is_stalled(&self, from: u64, to: u64) -> bool {
        let overlaps =
            |&(started_at, ended_at): &(u64, u64)| from < ended_at + STALL_GRACE && started_at < to;
        self.stalls.iter().any(overlaps)
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
        let violations = history.check().1;
        assert!(violations.iter().all(|violation| violation.guarantee == Guarantee::L1));
        violations.into_iter().map(|violation| violation.description).collect()
    }

    fn requested_event(time_ms: u64) -> (u64, QuotaEvent) {
        (time_ms, QuotaEvent::Requested { client: 0, key: "k".into() })
    }

    fn refused_event(time_ms: u64) -> (u64, QuotaEvent) {
        (time_ms, QuotaEvent::Refused { client: 0, key: "k".into() })
    }

    fn failed_event(time_ms: u64) -> (u64, QuotaEvent) {
        (time_ms, QuotaEvent::Failed { client: 0, key: "k".into() })
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
        let only_errors =
            [requested_event(1010), failed_event(1020), requested_event(1030), failed_event(1040)];
        assert_eq!(check_client_events(1, &only_errors).len(), 1);
        let sent_at = 1150 * NANOS_PER_MILLI;
        let local =
            (1160, QuotaEvent::AdmittedLocally { client: 0, key: "k".into(), sent_at, cost: 1 });
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
            (1155, QuotaEvent::Stalled { since: 1120 * NANOS_PER_MILLI }),
        ];
        events.extend([requested_event(1150), failed_event(1160)]);
        assert_eq!(check_client_events(1, &events).len(), 0);
        let mut history = QuotaHistory::default();
        (history.last_fault_end, history.max_wait) = (1, 1);
        history.add_log(
            FIRST_INCARNATION,
            &format_line(5, 7, &QuotaEvent::Requested { client: 0, key: "k".into() }),
        );
        assert_eq!(history.check().1.len(), 1);
        history.killed.insert(FIRST_INCARNATION);
        assert_eq!(history.check().1.len(), 0);
    }
}
