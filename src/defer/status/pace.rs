//! How long runs take, for an honest `Retry-After`.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

use crate::{
    clock::micros,
    key::Key,
    store::{JobState, JobView},
};

/// Most kinds of resources that are told apart; more of them share what is known of the first.
const KINDS: usize = 256;

/// Nobody will run it before a worker has come, or been started.
const NOBODY: Duration = Duration::from_secs(10);

const LONGEST: Duration = Duration::from_secs(60 * 60);

/// A moving average of the run times of each kind of resource (`order`, `user`), as this process has seen
/// them in the documents that it gave out; each new one counts for an eighth.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<HashMap<String, Pace>>);

#[derive(Debug)]
struct Pace {
    usual: u64,
    /// When the last of them ended that has counted: each counts once, however often somebody asks for it.
    ended: u64,
}

impl Paces {
    /// Learns from a job that has ended.
    pub(super) fn note(&self, job: &JobView) {
        let past = &job.history;
        let (Some(lock), JobState::Done) = (&past.lock, job.state) else {
            return;
        };
        let took = past.ended_us.saturating_sub(past.started_us);
        if past.started_us == 0 || took == 0 {
            return;
        }
        let mut paces = self.0.lock();
        let room = paces.len() < KINDS;
        match paces.get_mut(lock.class()) {
            Some(pace) if pace.ended < past.ended_us => {
                pace.usual = pace.usual - pace.usual / 8 + took / 8;
                pace.ended = past.ended_us;
            }
            None if room => {
                let pace = Pace { usual: took, ended: past.ended_us };
                paces.insert(lock.class().to_owned(), pace);
            }
            _ => {}
        }
    }

    /// When a look is worth it: when it may run, and all before it have, as far as is known. A second at
    /// least, an hour at most.
    pub(super) fn retry_after(&self, job: &JobView) -> Duration {
        let soonest = Duration::from_secs(1);
        let due = job.history.due_in.unwrap_or_default();
        if !job.is_watched && job.state == JobState::Queued {
            return due.clamp(NOBODY, LONGEST);
        }
        let usual = self.usual(job.history.lock.as_ref());
        let turns = job.position.unwrap_or(1).clamp(1, 1_000_000);
        let wait = Duration::from_micros(usual.saturating_mul(turns).min(micros(LONGEST)));
        (due + wait).clamp(soonest, LONGEST)
    }

    fn usual(&self, lock: Option<&Key>) -> u64 {
        lock.and_then(|lock| self.0.lock().get(lock.class()).map(|pace| pace.usual)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(ended: u64, took: u64) -> JobView {
        let mut job = JobView {
            state: JobState::Done,
            attempts: 1,
            position: None,
            reason: None,
            owner: String::new(),
            watched: true,
            response: None,
            tombstone: false,
            past: Default::default(),
        };
        job.past.lock = Some(Key::path_param("id", "7"));
        (job.past.began_us, job.past.ended_us) = (ended - took, ended);
        job
    }

    /// Else who asks for a slow one again and again would have everybody wait as long.
    #[test]
    fn a_job_counts_once_however_often_it_is_asked_for() {
        let (paces, lock) = (Paces::default(), Key::path_param("id", "8"));
        paces.note(&done(1_000_000, 800));
        for _ in 0..100 {
            paces.note(&done(9_000_000, 8_000_000));
            paces.note(&done(1_000_000, 800));
        }
        assert_eq!(paces.usual(Some(&lock)), 800 - 100 + 1_000_000);
    }
}
