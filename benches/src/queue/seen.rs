//! What has run in a process: how often each job, and when.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::plan::Ran;
use crate::clock;

/// What is pushed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Body {
    job: u64,
    text: String,
}

impl Body {
    /// As many bytes of JSON as asked for.
    pub(crate) fn new(job: u64, bytes: usize) -> Self {
        let mut body = Self { job, text: String::new() };
        body.text = "x".repeat(bytes.saturating_sub(body.length()));
        body
    }

    /// Of it as JSON; nothing in it is ever escaped.
    fn length(&self) -> usize {
        let digits = self.job.checked_ilog10().map_or(1, |log| log as usize + 1);
        r#"{"job":,"text":""}"#.len() + digits + self.text.len()
    }
}

#[derive(Debug)]
pub(crate) struct Seen {
    counts: Vec<AtomicU8>,
    /// Of each job, if moments are told.
    starts: Vec<AtomicU64>,
    bytes: usize,
    ran: AtomicU64,
    twice: AtomicU64,
    strange: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

impl Seen {
    pub(crate) fn new(jobs: u64, bytes: usize, keep: bool) -> Self {
        let starts = if keep { jobs } else { 0 };
        Self {
            counts: (0..jobs).map(|_| AtomicU8::new(0)).collect(),
            starts: (0..starts).map(|_| AtomicU64::new(0)).collect(),
            bytes,
            ran: AtomicU64::new(0),
            twice: AtomicU64::new(0),
            strange: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// All a handler does.
    pub(crate) fn started(&self, body: &Body) {
        let at = clock::now();
        let job = usize::try_from(body.job).ok();
        let known = job.and_then(|job| Some((job, self.counts.get(job)?)));
        let Some((job, count)) = known.filter(|_| body.length() == self.bytes) else {
            self.strange.fetch_add(1, Relaxed);
            return;
        };
        let _ = self.first.compare_exchange(0, at, Relaxed, Relaxed);
        self.last.fetch_max(at, Relaxed);
        if count.fetch_add(1, Relaxed) > 0 {
            self.twice.fetch_add(1, Relaxed);
            return;
        }
        if let Some(start) = self.starts.get(job) {
            start.store(at, Relaxed);
        }
        self.ran.fetch_add(1, Relaxed);
    }

    /// The same of a body as it came.
    pub(crate) fn started_raw(&self, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            Ok(body) => self.started(&body),
            Err(_) => {
                self.strange.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn progress(&self) -> u64 {
        self.ran.load(Relaxed)
    }

    pub(crate) fn tell(&self) -> Ran {
        Ran {
            ran: self.ran.load(Relaxed),
            twice: self.twice.load(Relaxed),
            strange: self.strange.load(Relaxed),
            first: self.first.load(Relaxed),
            last: self.last.load(Relaxed),
            starts: self.starts.iter().map(|start| start.load(Relaxed)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_their_length() {
        for job in [0, 9, 10, 99_999] {
            let body = Body::new(job, 1024);
            assert_eq!(serde_json::to_vec(&body).unwrap().len(), 1024);
            assert_eq!(body.length(), 1024);
        }
    }

    #[test]
    fn every_job_is_counted_once() {
        let seen = Seen::new(2, 100, true);
        for job in [0, 1, 1, 2] {
            seen.started(&Body::new(job, 100));
        }
        seen.started(&Body::new(0, 99));
        seen.started_raw(b"nonsense");
        let told = seen.tell();
        assert_eq!((told.ran, told.twice, told.strange), (2, 1, 3));
        assert!(told.starts[0] > 0 && told.starts[1] >= told.starts[0]);
    }
}
