//! `RunTimeAverages`: averages of run times, from which `Retry-After` is estimated.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;

use crate::{
    durations::saturating_micros,
    key::Key,
    store::{JobState, JobView},
};

/// Most lock classes with an average of their own. No further ones are recorded.
const MAX_LOCK_CLASSES: usize = 256;

/// Delay for a job without a live worker, which can't run before one is started.
const NO_WORKER_RETRY_AFTER: Duration = Duration::from_secs(10);

const MAX_RETRY_AFTER: Duration = Duration::from_secs(60 * 60);

/// Moving average of the run times of each lock class (`order`, `user`), over the documents that
/// this process has returned. Each new run counts for an eighth.
#[derive(Debug, Default)]
pub(super) struct RunTimeAverages(Mutex<HashMap<String, RunTimeAverage>>);

#[derive(Debug)]
struct RunTimeAverage {
    average_us: u64,
    /// End of the latest run that was recorded. Each run counts once, however often its document is
    /// requested.
    last_ended_us: u64,
}

impl RunTimeAverages {
    /// Records the run time of a done job.
    pub(super) fn record(&self, job: &JobView) {
        let history = &job.history;
        let (Some(lock), JobState::Done) = (&history.lock, job.state) else {
            return;
        };
        let took = history.ended_us.saturating_sub(history.started_us);
        if history.started_us == 0 || took == 0 {
            return;
        }
        let mut averages = self.0.lock();
        let has_capacity = averages.len() < MAX_LOCK_CLASSES;
        match averages.get_mut(lock.without_value()) {
            Some(average) if average.last_ended_us < history.ended_us => {
                average.average_us = average.average_us - average.average_us / 8 + took / 8;
                average.last_ended_us = history.ended_us;
            }
            None if has_capacity => {
                let average = RunTimeAverage { average_us: took, last_ended_us: history.ended_us };
                averages.insert(lock.without_value().to_owned(), average);
            }
            _ => {}
        }
    }

    /// Estimates when the client should poll again: when the job may run and those before it have
    /// run. At least a second, at most `MAX_RETRY_AFTER`.
    pub(super) fn estimate_retry_after(&self, job: &JobView) -> Duration {
        let due_in = job.history.due_in.unwrap_or_default();
        if !job.is_watched && job.state == JobState::Queued {
            return due_in.clamp(NO_WORKER_RETRY_AFTER, MAX_RETRY_AFTER);
        }
        let average_us = self.average_us(job.history.lock.as_ref());
        let runs = job.position.unwrap_or(1).clamp(1, 1_000_000);
        let wait = Duration::from_micros(
            average_us.saturating_mul(runs).min(saturating_micros(MAX_RETRY_AFTER)),
        );
        (due_in + wait).clamp(Duration::from_secs(1), MAX_RETRY_AFTER)
    }

    fn average_us(&self, lock: Option<&Key>) -> u64 {
        lock.and_then(|lock| {
            self.0.lock().get(lock.without_value()).map(|average| average.average_us)
        })
        .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done_job(ended: u64, took: u64) -> JobView {
        let mut job = JobView {
            state: JobState::Done,
            attempts: 1,
            position: None,
            reason: None,
            owner: String::new(),
            is_watched: true,
            response: None,
            is_tombstone: false,
            history: Default::default(),
        };
        job.history.lock = Some(Key::path_param("id", "7"));
        (job.history.started_us, job.history.ended_us) = (ended - took, ended);
        job
    }

    /// Otherwise repeated polls of a slow job would raise the estimate of all others.
    #[test]
    fn job_polled_repeatedly_counts_once() {
        let (averages, lock) = (RunTimeAverages::default(), Key::path_param("id", "8"));
        averages.record(&done_job(1_000_000, 800));
        for _ in 0..100 {
            averages.record(&done_job(9_000_000, 8_000_000));
            averages.record(&done_job(1_000_000, 800));
        }
        assert_eq!(averages.average_us(Some(&lock)), 800 - 100 + 1_000_000);
    }
}
