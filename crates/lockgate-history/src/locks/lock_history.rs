//! `LockHistory`, the merged logs of all processes, with one entry for each acquisition.

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
    pub fn add_log(&mut self, life: ProcessIncarnation, text: &str) {
        self.add_events(life, lock_event::parse_events(text));
    }

    /// Checks M1, M2, M3, P1, R1, F1 and L1.
    #[must_use]
    pub fn check(&self) -> (LockCheckStats, Vec<Violation>) {
        check::check_history(self)
    }

    /// Returns the number of grants.
    #[must_use]
    pub fn grant_count(&self) -> usize {
        self.acquisitions.iter().filter(|op| op.grant.is_some()).count()
    }

    /// Adds the events of one process, with the time of each of them in ns.
    pub fn add_events(&mut self, life: ProcessIncarnation, events: Vec<(u64, LockEvent)>) {
        let mut ops = HashMap::new();
        for (at, event) in events {
            match event {
                LockEvent::Requested(id, lock, mode) => {
                    let (answered, grant) = (None, None);
                    ops.insert(
                        id,
                        LockAcquisition {
                            incarnation: life,
                            id,
                            lock,
                            mode,
                            requested_at: at,
                            answered_at: answered,
                            grant,
                        },
                    );
                }
                LockEvent::Stalled(since) => {
                    // After a stall, messages are received late and waiters poll late.
                    self.disturbances
                        .push(DisturbedInterval { from: since, to: at + 400 * NANOS_PER_MILLI });
                }
                LockEvent::Granted(id, ..)
                | LockEvent::Refused(id)
                | LockEvent::Failed(id)
                | LockEvent::Cancelled(id)
                | LockEvent::Renewed(id, _)
                | LockEvent::LossReported(id)
                | LockEvent::Written(id, _)
                | LockEvent::Releasing(id)
                | LockEvent::Released(id, _) => {
                    if let Some(op) = ops.get_mut(&id) {
                        op.apply_event(at, &event);
                    }
                }
            }
        }
        self.acquisitions.extend(ops.into_values());
    }

    /// Returns the holds of a lock, in the order of their start.
    pub(super) fn hold_intervals(&self, lock: &str) -> Vec<HoldInterval<'_>> {
        let ops = self.acquisitions.iter().filter(|op| op.lock == lock);
        let mut holds: Vec<_> = ops.filter_map(|op| self.hold_interval(op)).collect();
        holds.sort_by_key(|hold| hold.from);
        holds
    }

    fn hold_interval<'a>(&self, op: &'a LockAcquisition) -> Option<HoldInterval<'a>> {
        let grant = op.grant.as_ref()?;
        let killed = self.killed_at.get(&op.incarnation).copied();
        let ends = [grant.release_started_at, grant.lost_at, killed];
        let to = ends.into_iter().flatten().fold(grant.valid_until, u64::min);
        (grant.granted_at < to).then_some(HoldInterval {
            acquisition: op,
            from: grant.granted_at,
            to,
        })
    }

    pub(super) fn lock_names(&self) -> Vec<String> {
        let mut locks: Vec<_> = self.acquisitions.iter().map(|op| op.lock.clone()).collect();
        locks.sort();
        locks.dedup();
        locks
    }

    /// Formats acquisitions, one line each, with times relative to the start.
    pub(super) fn format_acquisitions<'a>(
        &self,
        ops: impl IntoIterator<Item = &'a LockAcquisition>,
    ) -> String {
        let mut ops: Vec<_> = ops.into_iter().collect();
        ops.sort_by_key(|op| op.requested_at);
        ops.into_iter().map(|op| format!("\n  {}", AcquisitionDisplay(self, op))).collect()
    }
}

impl LockAcquisition {
    fn apply_event(&mut self, at: u64, event: &LockEvent) {
        let grant = self.grant.as_mut();
        match (event, grant) {
            (LockEvent::Granted(_, fence, valid), _) => {
                self.answered_at = Some(at);
                let (fence, valid) = (*fence, *valid);
                self.grant = Some(RecordedGrant {
                    granted_at: at,
                    fence,
                    valid_until: valid,
                    ..RecordedGrant::default()
                });
            }
            (LockEvent::Refused(_) | LockEvent::Failed(_) | LockEvent::Cancelled(_), _) => {
                self.answered_at = Some(at);
            }
            (LockEvent::Renewed(_, valid), Some(grant)) => grant.valid_until = *valid,
            (LockEvent::LossReported(_), Some(grant)) => {
                grant.lost_at = Some(grant.lost_at.unwrap_or(at));
            }
            (LockEvent::Releasing(_), Some(grant)) => grant.release_started_at = Some(at),
            (LockEvent::Written(_, value), Some(grant)) => grant.written_values.push(*value),
            _ => {}
        }
    }
}

struct AcquisitionDisplay<'a>(&'a LockHistory, &'a LockAcquisition);

impl fmt::Display for AcquisitionDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(history, op) = self;
        let us = |at: u64| at.saturating_sub(history.started_at) / 1000;
        let ProcessIncarnation { process, generation: number } = op.incarnation;
        let (lock, mode) = (&op.lock, op.mode);
        write!(
            f,
            "process {process}.{number} op {}: {lock} {mode} asked {} us",
            op.id,
            us(op.requested_at)
        )?;
        let Some(grant) = &op.grant else {
            return match op.answered_at {
                Some(at) => write!(f, ", refused {} us", us(at)),
                None => f.write_str(", no answer"),
            };
        };
        write!(f, ", granted {} us, fence {}", us(grant.granted_at), grant.fence)?;
        write!(f, ", sure until {} us", us(grant.valid_until))?;
        let ends = [
            ("told of its loss", grant.lost_at),
            ("given back", grant.release_started_at),
            ("killed", history.killed_at.get(&op.incarnation).copied()),
        ];
        for (what, at) in ends {
            if let Some(at) = at {
                write!(f, ", {what} {} us", us(at))?;
            }
        }
        Ok(())
    }
}
