//! Counters and start times of the jobs that ran in a process.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::queue_plan::RunReport;
use crate::clock;

/// Body of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct JobBody {
    job: u64,
    text: String,
}

impl JobBody {
    /// Creates a body with `bytes` bytes of JSON.
    pub(crate) fn new(job: u64, bytes: usize) -> Self {
        let mut body = Self { job, text: String::new() };
        body.text = "x".repeat(bytes.saturating_sub(body.json_length()));
        body
    }

    /// Returns the length as JSON. No character of the body is escaped.
    fn json_length(&self) -> usize {
        let digits = self.job.checked_ilog10().map_or(1, |log| log as usize + 1);
        r#"{"job":,"text":""}"#.len() + digits + self.text.len()
    }
}

#[derive(Debug)]
pub(crate) struct RunRecorder {
    run_counts: Vec<AtomicU8>,
    /// Nanoseconds; empty unless times are recorded.
    start_times: Vec<AtomicU64>,
    body_bytes: usize,
    distinct_runs: AtomicU64,
    repeated_runs: AtomicU64,
    unexpected_runs: AtomicU64,
    first_start: AtomicU64,
    last_start: AtomicU64,
}

impl RunRecorder {
    pub(crate) fn new(jobs: u64, body_bytes: usize, record_times: bool) -> Self {
        let start_time_count = if record_times { jobs } else { 0 };
        Self {
            run_counts: (0..jobs).map(|_| AtomicU8::new(0)).collect(),
            start_times: (0..start_time_count).map(|_| AtomicU64::new(0)).collect(),
            body_bytes,
            distinct_runs: AtomicU64::new(0),
            repeated_runs: AtomicU64::new(0),
            unexpected_runs: AtomicU64::new(0),
            first_start: AtomicU64::new(0),
            last_start: AtomicU64::new(0),
        }
    }

    /// Records a run. This is all that a handler does.
    pub(crate) fn record_start(&self, body: &JobBody) {
        let started_at = clock::now();
        let job = usize::try_from(body.job).ok();
        let counter = job.and_then(|job| Some((job, self.run_counts.get(job)?)));
        let Some((job, count)) = counter.filter(|_| body.json_length() == self.body_bytes) else {
            self.unexpected_runs.fetch_add(1, Relaxed);
            return;
        };
        let _ = self.first_start.compare_exchange(0, started_at, Relaxed, Relaxed);
        self.last_start.fetch_max(started_at, Relaxed);
        if count.fetch_add(1, Relaxed) > 0 {
            self.repeated_runs.fetch_add(1, Relaxed);
            return;
        }
        if let Some(start) = self.start_times.get(job) {
            start.store(started_at, Relaxed);
        }
        self.distinct_runs.fetch_add(1, Relaxed);
    }

    /// Like [`record_start`](Self::record_start), for a body of JSON.
    pub(crate) fn record_raw_start(&self, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            Ok(body) => self.record_start(&body),
            Err(_) => {
                self.unexpected_runs.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn distinct_run_count(&self) -> u64 {
        self.distinct_runs.load(Relaxed)
    }

    pub(crate) fn report(&self) -> RunReport {
        RunReport {
            distinct_runs: self.distinct_runs.load(Relaxed),
            repeated_runs: self.repeated_runs.load(Relaxed),
            unexpected_runs: self.unexpected_runs.load(Relaxed),
            first_start: self.first_start.load(Relaxed),
            last_start: self.last_start.load(Relaxed),
            start_times: self.start_times.iter().map(|start| start.load(Relaxed)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_body_has_requested_json_length() {
        for job in [0, 9, 10, 99_999] {
            let body = JobBody::new(job, 1024);
            assert_eq!(serde_json::to_vec(&body).unwrap().len(), 1024);
            assert_eq!(body.json_length(), 1024);
        }
    }

    #[test]
    fn distinct_repeated_and_unexpected_runs_are_counted() {
        let recorder = RunRecorder::new(2, 100, true);
        for job in [0, 1, 1, 2] {
            recorder.record_start(&JobBody::new(job, 100));
        }
        recorder.record_start(&JobBody::new(0, 99));
        recorder.record_raw_start(b"nonsense");
        let report = recorder.report();
        assert_eq!((report.distinct_runs, report.repeated_runs, report.unexpected_runs), (2, 1, 3));
        assert!(report.start_times[0] > 0 && report.start_times[1] >= report.start_times[0]);
    }
}
