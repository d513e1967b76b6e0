//! What is known of each acquisition, put together from the logs.

use std::{collections::HashMap, fmt};

use super::{
    clock::MS,
    event::{Event, Mode},
};

/// One life of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Life {
    /// Which of those that replace each other.
    pub process: usize,
    /// From 0, one more with each replacement.
    pub number: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) life: Life,
    pub(crate) id: u64,
    pub(crate) lock: String,
    pub(crate) mode: Mode,
    pub(crate) asked: u64,
    /// When it was answered, or given up.
    pub(crate) answered: Option<u64>,
    pub(crate) grant: Option<Grant>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Grant {
    pub(crate) at: u64,
    pub(crate) fence: u64,
    /// The latest that its process was sure of.
    pub(crate) valid: u64,
    pub(crate) lost: Option<u64>,
    pub(crate) letting: Option<u64>,
    /// Values that the fenced register took.
    pub(crate) wrote: Vec<u64>,
}

/// A time during which somebody was sure to hold a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold<'a> {
    pub(crate) op: &'a Op,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A time in which order and speed are not judged, and why.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// All that was written down.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) ops: Vec<Op>,
    pub(crate) troubles: Vec<Trouble>,
    /// When each life was ended, or a moment before.
    pub(crate) killed: HashMap<Life, u64>,
    /// When the last fault was over.
    pub(crate) calm: u64,
    pub(crate) began: u64,
}

impl History {
    /// Adds what one life has written.
    pub(crate) fn add(&mut self, life: Life, events: Vec<(u64, Event)>) {
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
    pub(crate) fn holds(&self, lock: &str) -> Vec<Hold<'_>> {
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

    pub(crate) fn locks(&self) -> Vec<String> {
        let mut locks: Vec<_> = self.ops.iter().map(|op| op.lock.clone()).collect();
        locks.sort();
        locks.dedup();
        locks
    }

    pub(crate) fn grants(&self) -> usize {
        self.ops.iter().filter(|op| op.grant.is_some()).count()
    }

    /// These acquisitions, a line each, with times from the beginning.
    pub(crate) fn excerpt<'a>(&self, ops: impl IntoIterator<Item = &'a Op>) -> String {
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
