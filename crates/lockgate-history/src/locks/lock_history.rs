//! `LockHistory`: the merged logs of all processes, with one entry for each acquisition.

use std::{collections::HashMap, fmt};

use super::{
    check::{self, LockCheckStats},
    lock_event::{self, LockEvent, RecordedLockMode},
};
use crate::{NANOS_PER_MILLI, ProcessIncarnation, Violation};

#[derive(Debug, Clone)]
pub(super) struct LockAcquisition {
    pub(super) incarnation: ProcessIncarnation,
    pub(super) id: u64,
    pub(super) lock: String,
    pub(super) mode: RecordedLockMode,
    pub(super) requested_at: u64,
    /// Time of the response, or of the cancellation.
    pub(super) answered_at: Option<u64>,
    pub(super) grant: Option<RecordedGrant>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RecordedGrant {
    pub(super) granted_at: u64,
    pub(super) fence: u64,
    /// Last known end of the validity time.
    pub(super) valid_until: u64,
    pub(super) lost_at: Option<u64>,
    pub(super) release_started_at: Option<u64>,
    /// Values that the fenced register took.
    pub(super) written_values: Vec<u64>,
}

/// Interval in which a holder had a valid lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldInterval<'a> {
    pub(super) acquisition: &'a LockAcquisition,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Period in which order and speed are not checked, since a process or the store was disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisturbedInterval {
    /// Start in ns.
    pub from: u64,
    /// End in ns, including the time for the recovery.
    pub to: u64,
}

/// Register that is changed under a lock and checks fences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FencedRegister {
    /// Name of the lock.
    pub lock: String,
    /// Fence and value of each write that it took, in order. Each value must be the previous one
    /// plus one.
    pub writes: Vec<(u64, u64)>,
}

/// Merged logs of the locks of one namespace, on one clock.
#[derive(Debug, Default)]
pub struct LockHistory {
    pub(super) acquisitions: Vec<LockAcquisition>,
    /// Disturbances that the test caused.
    pub disturbances: Vec<DisturbedInterval>,
    /// Time in ns at which each process was killed, or shortly before.
    pub killed_at: HashMap<ProcessIncarnation, u64>,
    /// End of the last fault in ns, from which L1 counts.
    pub last_fault_end: u64,
    /// Start of the history in ns; formatted times are relative to it.
    pub started_at: u64,
    /// Longest time in ns that a request may wait after the last fault. Zero skips the check.
    pub max_wait: u64,
    /// Registers that were changed under the locks.
    pub registers: Vec<FencedRegister>,
}

impl LockHistory {
    /// Adds the log of one process; an incomplete last line is ignored.
    pub fn add_log(&mut self, incarnation: ProcessIncarnation, text: &str) {
        self.add_events(incarnation, lock_event::parse_events(text));
    }

    /// Checks M1, M2, M3, P1, R1, F1 and L1.
    #[must_use]
    pub fn check(&self) -> (LockCheckStats, Vec<Violation>) {
        check::check_history(self)
    }

    /// Returns the number of grants.
    #[must_use]
    pub fn grant_count(&self) -> usize {
        self.acquisitions.iter().filter(|a| a.grant.is_some()).count()
    }

    /// Adds the events of one process, with the time of each of them in ns.
    pub fn add_events(&mut self, incarnation: ProcessIncarnation, events: Vec<(u64, LockEvent)>) {
        let mut acquisitions = HashMap::new();
        for (at, event) in events {
            match event {
                LockEvent::Requested { acquisition: id, lock, mode } => {
                    let acquisition = LockAcquisition {
                        incarnation,
                        id,
                        lock,
                        mode,
                        requested_at: at,
                        answered_at: None,
                        grant: None,
                    };
                    acquisitions.insert(id, acquisition);
                }
                LockEvent::Stalled { since } => {
                    // After a stall, messages are received late and waiters poll late.
                    self.disturbances
                        .push(DisturbedInterval { from: since, to: at + 400 * NANOS_PER_MILLI });
                }
                LockEvent::Granted { acquisition: id, .. }
                | LockEvent::Refused { acquisition: id }
                | LockEvent::Failed { acquisition: id }
                | LockEvent::Cancelled { acquisition: id }
                | LockEvent::Renewed { acquisition: id, .. }
                | LockEvent::LossReported { acquisition: id }
                | LockEvent::Written { acquisition: id, .. }
                | LockEvent::Releasing { acquisition: id }
                | LockEvent::Released { acquisition: id, .. } => {
                    if let Some(acquisition) = acquisitions.get_mut(&id) {
                        acquisition.apply_event(at, &event);
                    }
                }
            }
        }
        self.acquisitions.extend(acquisitions.into_values());
    }

    /// Returns the holds of a lock, in the order of their start.
    pub(super) fn hold_intervals(&self, lock: &str) -> Vec<HoldInterval<'_>> {
        let acquisitions = self.acquisitions.iter().filter(|a| a.lock == lock);
        let mut holds: Vec<_> = acquisitions.filter_map(|a| self.hold_interval(a)).collect();
        holds.sort_by_key(|hold| hold.from);
        holds
    }

    fn hold_interval<'a>(&self, acquisition: &'a LockAcquisition) -> Option<HoldInterval<'a>> {
        let grant = acquisition.grant.as_ref()?;
        let killed_at = self.killed_at.get(&acquisition.incarnation).copied();
        let ends = [grant.release_started_at, grant.lost_at, killed_at];
        let to = ends.into_iter().flatten().fold(grant.valid_until, u64::min);
        (grant.granted_at < to).then_some(HoldInterval { acquisition, from: grant.granted_at, to })
    }

    pub(super) fn lock_names(&self) -> Vec<String> {
        let mut locks: Vec<_> = self.acquisitions.iter().map(|a| a.lock.clone()).collect();
        locks.sort();
        locks.dedup();
        locks
    }

    /// Formats acquisitions, one line each, with times relative to the start.
    pub(super) fn format_acquisitions<'a>(
        &self,
        acquisitions: impl IntoIterator<Item = &'a LockAcquisition>,
    ) -> String {
        let mut acquisitions: Vec<_> = acquisitions.into_iter().collect();
        acquisitions.sort_by_key(|acquisition| acquisition.requested_at);
        let lines = acquisitions.into_iter().map(|acquisition| {
            format!("\n  {}", AcquisitionDisplay { history: self, acquisition })
        });
        lines.collect()
    }
}

impl LockAcquisition {
    fn apply_event(&mut self, at: u64, event: &LockEvent) {
        let grant = self.grant.as_mut();
        match (event, grant) {
            (LockEvent::Granted { fence, valid_until, .. }, _) => {
                self.answered_at = Some(at);
                self.grant = Some(RecordedGrant {
                    granted_at: at,
                    fence: *fence,
                    valid_until: *valid_until,
                    ..RecordedGrant::default()
                });
            }
            (
                LockEvent::Refused { .. } | LockEvent::Failed { .. } | LockEvent::Cancelled { .. },
                _,
            ) => {
                self.answered_at = Some(at);
            }
            (LockEvent::Renewed { valid_until, .. }, Some(grant)) => {
                grant.valid_until = *valid_until;
            }
            (LockEvent::LossReported { .. }, Some(grant)) => {
                grant.lost_at = Some(grant.lost_at.unwrap_or(at));
            }
            (LockEvent::Releasing { .. }, Some(grant)) => grant.release_started_at = Some(at),
            (LockEvent::Written { value, .. }, Some(grant)) => grant.written_values.push(*value),
            _ => {}
        }
    }
}

/// Acquisition as a line of a violation.
struct AcquisitionDisplay<'a> {
    history: &'a LockHistory,
    acquisition: &'a LockAcquisition,
}

impl fmt::Display for AcquisitionDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { history, acquisition } = self;
        let micros = |at: u64| at.saturating_sub(history.started_at) / 1000;
        let ProcessIncarnation { process, generation } = acquisition.incarnation;
        let LockAcquisition { id, lock, mode, .. } = acquisition;
        let requested_at = micros(acquisition.requested_at);
        write!(f, "process {process}.{generation}, acquisition {id}: ")?;
        write!(f, "lock {lock}, mode {mode}, requested at {requested_at} us")?;
        let Some(grant) = &acquisition.grant else {
            return match acquisition.answered_at {
                Some(at) => write!(f, ", not granted at {} us", micros(at)),
                None => f.write_str(", unanswered"),
            };
        };
        write!(f, ", granted at {} us, fence {}", micros(grant.granted_at), grant.fence)?;
        write!(f, ", valid until {} us", micros(grant.valid_until))?;
        let ends = [
            ("loss reported", grant.lost_at),
            ("release started", grant.release_started_at),
            ("process killed", history.killed_at.get(&acquisition.incarnation).copied()),
        ];
        for (end, at) in ends {
            if let Some(at) = at {
                write!(f, ", {end} at {} us", micros(at))?;
            }
        }
        Ok(())
    }
}
