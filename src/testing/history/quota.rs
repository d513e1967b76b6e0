//! Histories of quotas: who was let in, when, at which cost.
//!
//! Whatever the algorithm, a quota bounds what may be let in within a time of any length: fixed windows of length
//! `w` let in `limit` for each window that the time touches, sliding windows and GCRA less ([`Limit`]). A request
//! that was let in was charged between its being sent and its being answered; so of all that was sent and answered
//! within a time, no more may have been let in than that. What was refused, or was not answered, counts for nothing:
//! it may have been charged, but nobody was let in by it.

use std::{collections::BTreeMap, fmt, str::FromStr};

use super::{Check, Life, Violation, lines};

/// What a quota lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// So much in each window, ns.
    Fixed {
        /// Most per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
    /// So much in any time of this length by the sliding window's formula, which counts the last window by the
    /// part of it that is still in sight: what it lets in within a window's length is less than two limits, and
    /// within many windows a limit for each, and one more.
    Sliding {
        /// Most per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
    /// So much at once, and from then on evenly `limit` for each window.
    Paced {
        /// Most at once.
        burst: u64,
        /// Per window.
        limit: u64,
        /// Its length, ns.
        window: u64,
    },
}

/// Windows that are looked at together: from each request on, and once all of them.
const FAR: u64 = 4;

impl Limit {
    fn window(&self) -> u64 {
        match *self {
            Self::Fixed { window, .. }
            | Self::Sliding { window, .. }
            | Self::Paced { window, .. } => window,
        }
    }

    /// The most that is let in within a time of this length, ns.
    #[must_use]
    pub fn most(&self, time: u64) -> u64 {
        match *self {
            // Windows that such a time touches: the one it begins in, and each that begins within it.
            Self::Fixed { limit, window } | Self::Sliding { limit, window } => {
                limit.saturating_mul(time / window.max(1) + 2)
            }
            Self::Paced { burst, limit, window } => {
                let paced = u128::from(time) * u128::from(limit) / u128::from(window.max(1));
                burst.saturating_add(u64::try_from(paced).unwrap_or(u64::MAX)).saturating_add(1)
            }
        }
    }
}

/// Something that one process did or saw. Written and read as one line of words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Let in: the key, when it was asked (ns), the cost.
    In(String, u64, u64),
    /// Refused.
    Out(String),
    /// Let in by the process itself, while the store was away.
    Local(String, u64, u64),
    /// An error: it may have been charged, and was not let in.
    Fault(String),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(key, sent, cost) => write!(f, "in {key} {sent} {cost}"),
            Self::Out(key) => write!(f, "out {key}"),
            Self::Local(key, sent, cost) => write!(f, "local {key} {sent} {cost}"),
            Self::Fault(key) => write!(f, "fault {key}"),
        }
    }
}

impl FromStr for Event {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<_> = text.split(' ').collect();
        let number = |word: &str| word.parse().map_err(drop);
        Ok(match words[..] {
            ["in", key, sent, cost] => Self::In(key.to_owned(), number(sent)?, number(cost)?),
            ["out", key] => Self::Out(key.to_owned()),
            ["local", key, sent, cost] => Self::Local(key.to_owned(), number(sent)?, number(cost)?),
            ["fault", key] => Self::Fault(key.to_owned()),
            _ => return Err(()),
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    life: Life,
    sent: u64,
    told: u64,
    cost: u64,
}

/// All that was written down about quotas, on one clock.
#[derive(Debug, Default)]
pub struct History {
    /// The quota of each key. Keys without one are not judged.
    pub limits: BTreeMap<String, Limit>,
    /// What a process may let in by itself in any one outage, of each key; without it, a whole quota.
    pub share: Option<u64>,
    /// When the store has lost all it knew, ns: it begins anew.
    pub forgotten: Vec<u64>,
    entered: BTreeMap<String, Vec<Entry>>,
    local: BTreeMap<String, Vec<Entry>>,
    refused: u64,
    faults: u64,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Requests that the store has let in.
    pub entered: u64,
    /// Those that processes have let in by themselves.
    pub local: u64,
    /// Refusals.
    pub refused: u64,
    /// Errors.
    pub faults: u64,
    /// What was let in beyond a quota, in the worst case. Zero for a good history.
    pub over: u64,
}

impl History {
    /// Adds what one process has written to its file; a last line without its end is left out.
    pub fn read(&mut self, life: Life, text: &str) {
        for (told, event) in lines(text) {
            match event.parse() {
                Ok(Event::In(key, sent, cost)) => {
                    self.entered.entry(key).or_default().push(Entry { life, sent, told, cost });
                }
                Ok(Event::Local(key, sent, cost)) => {
                    self.local.entry(key).or_default().push(Entry { life, sent, told, cost });
                }
                Ok(Event::Out(_)) => self.refused += 1,
                Ok(Event::Fault(_)) => self.faults += 1,
                Err(()) => {}
            }
        }
    }

    /// RL1.
    #[must_use]
    pub fn check(&self) -> (Looked, Vec<Violation>) {
        let count =
            |all: &BTreeMap<String, Vec<Entry>>| all.values().map(|all| all.len() as u64).sum();
        let mut looked = Looked {
            entered: count(&self.entered),
            local: count(&self.local),
            refused: self.refused,
            faults: self.faults,
            over: 0,
        };
        let mut wrong = Vec::new();
        for (key, limit) in &self.limits {
            let of = |all: &BTreeMap<String, Vec<Entry>>| all.get(key).cloned().unwrap_or_default();
            let (over, shown) = self.beyond(limit, of(&self.entered));
            looked.over = looked.over.max(over);
            wrong.extend(shown.map(|shown| Violation::new(Check::RL1, format!("{key}: {shown}"))));
            let mut each: BTreeMap<Life, Vec<Entry>> = BTreeMap::new();
            for entry in of(&self.local) {
                each.entry(entry.life).or_default().push(entry);
            }
            for (Life { process, number }, entries) in each {
                let (over, shown) = self.beyond(&self.alone(limit), entries);
                looked.over = looked.over.max(over);
                wrong.extend(shown.map(|shown| {
                    let told = format!("{key}: process {process}.{number} alone: {shown}");
                    Violation::new(Check::RL1, told)
                }));
            }
        }
        (looked, wrong)
    }

    /// What one process may do while the store is away.
    fn alone(&self, limit: &Limit) -> Limit {
        let part = |limit: u64| self.share.map_or(limit, |share| share.min(limit));
        match *limit {
            Limit::Fixed { limit, window } => Limit::Fixed { limit: part(limit), window },
            Limit::Sliding { limit, window } => Limit::Sliding { limit: part(limit), window },
            Limit::Paced { burst, limit, window } => {
                Limit::Paced { burst: part(burst), limit: part(limit), window }
            }
        }
    }

    /// By how much the worst time is over its quota, and a sentence about it.
    #[expect(
        clippy::indexing_slicing,
        reason = "a point of partition is a place in it, or its end"
    )]
    fn beyond(&self, limit: &Limit, mut entries: Vec<Entry>) -> (u64, Option<String>) {
        entries.sort_by_key(|entry| entry.told);
        let mut begins: Vec<u64> = entries.iter().map(|entry| entry.sent).collect();
        begins.sort_unstable();
        begins.dedup();
        let far = limit.window().saturating_mul(FAR);
        let mut worst: (u64, Option<String>) = (0, None);
        let mut judge = |from: u64, to: u64, sum: u64| {
            let anew = self.forgotten.iter().filter(|at| (from..=to).contains(*at)).count() as u64;
            let may = limit.most(to - from) + limit.most(0) * anew;
            if sum > may && sum - may > worst.0 {
                let ms = (to - from) / super::MS;
                let shown = format!("{sum} let in within {ms} ms, where {may} may be");
                worst = (sum - may, Some(shown));
            }
        };
        for &from in &begins {
            let mut sum = 0;
            let first = entries.partition_point(|entry| entry.told < from);
            let near = entries[first..].iter().take_while(|entry| entry.told - from <= far);
            for entry in near.filter(|entry| entry.sent >= from) {
                sum += entry.cost;
                judge(from, entry.told, sum);
            }
        }
        if let (Some(from), Some(last)) = (begins.first(), entries.last()) {
            judge(*from, last.told, entries.iter().map(|entry| entry.cost).sum());
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::history::{MS, line};

    fn history(limit: Limit, events: &[(usize, u64, Event)]) -> History {
        let mut history = History::default();
        history.limits.insert("k".to_owned(), limit);
        for (process, at, event) in events {
            history.read(Life { process: *process, number: 0 }, &line(at * MS, 7, event));
        }
        history
    }

    /// So many at that time, each sent a ms before it was answered.
    fn at(ms: u64, many: u64) -> Vec<(usize, u64, Event)> {
        let one =
            |n| (usize::try_from(n % 3).unwrap(), ms, Event::In("k".into(), (ms - 1) * MS, 1));
        (0..many).map(one).collect()
    }

    fn over(limit: Limit, events: &[(usize, u64, Event)]) -> u64 {
        let (looked, wrong) = history(limit, events).check();
        assert_eq!(looked.over == 0, wrong.is_empty());
        assert!(wrong.iter().all(|wrong| wrong.check == Check::RL1));
        looked.over
    }

    const FIXED: Limit = Limit::Fixed { limit: 10, window: 1000 * MS };
    const PACED: Limit = Limit::Paced { burst: 5, limit: 10, window: 1000 * MS };

    #[test]
    fn what_is_written_can_be_read() {
        let key = || "k".to_owned();
        for event in [
            Event::In(key(), 5, 2),
            Event::Out(key()),
            Event::Local(key(), 5, 1),
            Event::Fault(key()),
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
    }

    #[test]
    fn rl1_two_windows_that_meet_and_one_more() {
        assert_eq!(over(FIXED, &[at(999, 10), at(1001, 10)].concat()), 0);
        assert_eq!(over(FIXED, &[at(999, 10), at(1001, 11)].concat()), 1);
        // Three windows.
        assert_eq!(over(FIXED, &[at(999, 10), at(1500, 10), at(2100, 10)].concat()), 0);
    }

    #[test]
    fn rl1_more_than_a_pace_lets_in() {
        assert_eq!(over(PACED, &at(50, 6)), 0);
        assert_eq!(over(PACED, &at(50, 8)), 2);
        assert_eq!(over(PACED, &[at(50, 5), at(550, 5)].concat()), 0);
        assert_eq!(over(PACED, &[at(50, 5), at(550, 9)].concat()), 3);
    }

    /// Neither who was refused nor who had no answer was let in.
    #[test]
    fn rl1_refusals_and_errors_count_for_nothing() {
        let none = |event: Event| (0..100).map(|_| (0, 60, event.clone())).collect::<Vec<_>>();
        let all =
            [at(50, 5), none(Event::Out("k".into())), none(Event::Fault("k".into()))].concat();
        assert_eq!(over(PACED, &all), 0);
        let (looked, _) = history(PACED, &all).check();
        assert_eq!((looked.entered, looked.refused, looked.faults), (5, 100, 100));
    }

    #[test]
    fn rl1_a_store_that_lost_all_begins_anew() {
        let mut history = history(FIXED, &[at(999, 10), at(1001, 25)].concat());
        assert_eq!(history.check().0.over, 15);
        history.forgotten.push(1000 * MS);
        assert_eq!(history.check().0.over, 0);
    }

    /// While the store is away each process has its share, and no more.
    #[test]
    fn rl1_a_process_alone() {
        let local = |process, many| {
            let one = move |_| (process, 50, Event::Local("k".into(), 49 * MS, 1));
            (0..many).map(one).collect::<Vec<_>>()
        };
        assert_eq!(over(PACED, &[local(0, 6), local(1, 6)].concat()), 0);
        assert_eq!(over(PACED, &local(0, 7)), 1);
        let mut history = history(PACED, &local(0, 6));
        history.share = Some(2);
        assert_eq!(history.check().0.over, 3);
    }
}
