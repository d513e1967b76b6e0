//! What is known of each acquisition, put together from the logs.

use std::{collections::HashMap, fmt};

use super::{
    check::{self, Looked},
    event::{self, Event, Mode},
};
use crate::{Life, MS, Violation};

#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) life: Life,
    pub(super) id: u64,
    pub(super) lock: String,
    pub(super) mode: Mode,
    pub(super) asked: u64,
    /// When it was answered, or given up.
    pub(super) answered: Option<u64>,
    pub(super) grant: Option<Grant>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Grant {
    pub(super) at: u64,
    pub(super) fence: u64,
    /// The latest that its process was sure of.
    pub(super) valid: u64,
    pub(super) lost: Option<u64>,
    pub(super) letting: Option<u64>,
    /// Values that the fenced register took.
    pub(super) wrote: Vec<u64>,
}

/// A time during which somebody was sure to hold a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold<'a> {
    pub(super) op: &'a Op,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// A time in which order and speed are not judged: something was done to a process, or to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// From then, ns.
    pub from: u64,
    /// Until then, with what it takes to get over it, ns.
    pub to: u64,
}

/// A register that is changed under a lock and looks at fences: what became of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    /// The lock.
    pub lock: String,
    /// Fence and value of each write that it took, in their order. Each value is to be the one before plus
    /// one.
    pub writes: Vec<(u64, u64)>,
}

/// All that was written down about locks of one name space, on one clock.
#[derive(Debug, Default)]
pub struct History {
    pub(super) ops: Vec<Op>,
    /// When something was done to them.
    pub troubles: Vec<Trouble>,
    /// When each process was ended, or a moment before, ns.
    pub killed: HashMap<Life, u64>,
    /// When the last fault was over, ns: L1 counts from then on.
    pub calm: u64,
    /// When it began, ns: told times count from it.
    pub began: u64,
    /// How long somebody may wait after the last fault, ns. Zero: not judged.
    pub patience: u64,
    /// What was changed under the locks.
    pub registers: Vec<Register>,
}

impl History {
    /// Adds what one process has written to its file; a last line without its end is left out.
    pub fn read(&mut self, life: Life, text: &str) {
        self.add(life, event::read(text));
    }

    /// M1, M2, M3, P1, R1, F1 and L1.
    #[must_use]
    pub fn check(&self) -> (Looked, Vec<Violation>) {
        check::all(self)
    }

    /// How often a lock was granted.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.ops.iter().filter(|op| op.grant.is_some()).count()
    }

    /// Adds what one process has seen, with the time of each event, ns.
    pub fn add(&mut self, life: Life, events: Vec<(u64, Event)>) {
        let mut ops = HashMap::new();
        for (at, event) in events {
            match event {
                Event::Ask(id, lock, mode) => {
                    let (answered, grant) = (None, None);
                    ops.insert(id, Op { life, id, lock, mode, asked: at, answered, grant });
                }
                Event::Stall(since) => {
                    // Messages that came meanwhile are heard late, and those who wait look late.
                    self.troubles.push(Trouble { from: since, to: at + 400 * MS });
                }
                Event::Got(id, ..)
                | Event::Busy(id)
                | Event::Fault(id)
                | Event::Gone(id)
                | Event::Holds(id, _)
                | Event::Lost(id)
                | Event::Wrote(id, _)
                | Event::Letting(id)
                | Event::Let(id, _) => {
                    if let Some(op) = ops.get_mut(&id) {
                        op.note(at, &event);
                    }
                }
            }
        }
        self.ops.extend(ops.into_values());
    }

    /// The holds of a lock that its holders were sure of, in the order they began.
    pub(super) fn holds(&self, lock: &str) -> Vec<Hold<'_>> {
        let ops = self.ops.iter().filter(|op| op.lock == lock);
        let mut holds: Vec<_> = ops.filter_map(|op| self.hold(op)).collect();
        holds.sort_by_key(|hold| hold.from);
        holds
    }

    fn hold<'a>(&self, op: &'a Op) -> Option<Hold<'a>> {
        let grant = op.grant.as_ref()?;
        let killed = self.killed.get(&op.life).copied();
        let ends = [grant.letting, grant.lost, killed];
        let to = ends.into_iter().flatten().fold(grant.valid, u64::min);
        (grant.at < to).then_some(Hold { op, from: grant.at, to })
    }

    pub(super) fn locks(&self) -> Vec<String> {
        let mut locks: Vec<_> = self.ops.iter().map(|op| op.lock.clone()).collect();
        locks.sort();
        locks.dedup();
        locks
    }

    /// These acquisitions, a line each, with times from the beginning.
    pub(super) fn excerpt<'a>(&self, ops: impl IntoIterator<Item = &'a Op>) -> String {
        let mut ops: Vec<_> = ops.into_iter().collect();
        ops.sort_by_key(|op| op.asked);
        ops.into_iter().map(|op| format!("\n  {}", Shown(self, op))).collect()
    }
}

impl Op {
    fn note(&mut self, at: u64, event: &Event) {
        let grant = self.grant.as_mut();
        match (event, grant) {
            (Event::Got(_, fence, valid), _) => {
                self.answered = Some(at);
                let (fence, valid) = (*fence, *valid);
                self.grant = Some(Grant { at, fence, valid, ..Grant::default() });
            }
            (Event::Busy(_) | Event::Fault(_) | Event::Gone(_), _) => self.answered = Some(at),
            (Event::Holds(_, valid), Some(grant)) => grant.valid = *valid,
            (Event::Lost(_), Some(grant)) => grant.lost = Some(grant.lost.unwrap_or(at)),
            (Event::Letting(_), Some(grant)) => grant.letting = Some(at),
            (Event::Wrote(_, value), Some(grant)) => grant.wrote.push(*value),
            _ => {}
        }
    }
}

struct Shown<'a>(&'a History, &'a Op);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(history, op) = self;
        let us = |at: u64| at.saturating_sub(history.began) / 1000;
        let Life { process, number } = op.life;
        let (lock, mode) = (&op.lock, op.mode);
        write!(
            f,
            "process {process}.{number} op {}: {lock} {mode} asked {} us",
            op.id,
            us(op.asked)
        )?;
        let Some(grant) = &op.grant else {
            return match op.answered {
                Some(at) => write!(f, ", refused {} us", us(at)),
                None => f.write_str(", no answer"),
            };
        };
        write!(f, ", granted {} us, fence {}", us(grant.at), grant.fence)?;
        write!(f, ", sure until {} us", us(grant.valid))?;
        let ends = [
            ("told of its loss", grant.lost),
            ("given back", grant.letting),
            ("killed", history.killed.get(&op.life).copied()),
        ];
        for (what, at) in ends {
            if let Some(at) = at {
                write!(f, ", {what} {} us", us(at))?;
            }
        }
        Ok(())
    }
}
