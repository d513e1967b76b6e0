//! What fails, and how.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};

/// What happens to a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// It runs; no answer comes within the deadline.
    NoReply,
    /// It runs; the answer never comes, and no deadline ends it.
    Silence,
    /// It runs; the answer comes so much later.
    Slow(Duration),
    /// It runs after so long, and is answered as much later.
    Late(Duration),
    /// No answer comes within the deadline; it runs so long after it was sent, whatever was called meanwhile.
    Stray(Duration),
    /// It runs and is answered; another copy of it, in a way that was left, runs after so long.
    Copy(Duration),
    /// It runs; the answer is an error of the store's, as of a script that ends in the middle.
    Odd,
    /// It does not run.
    Away,
    /// It does not run: the login is refused.
    Refused,
}

const DEADLINE: Duration = Duration::from_millis(250);

/// A handle on what fails, for the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<HashMap<&'static str, (Fault, usize)>>>, Seen, Arc<AtomicU64>);

/// How often each step was called.
type Seen = Arc<Mutex<HashMap<&'static str, usize>>>;

impl Faults {
    /// The next `calls` calls of this step meet this fault.
    pub(crate) fn set(&self, step: &'static str, fault: Fault, calls: usize) {
        self.0.lock().insert(step, (fault, calls));
    }

    /// The way to the store is left because it is silent.
    pub(crate) fn leave_a_way(&self) {
        self.2.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls that still have to meet it.
    pub(crate) fn left(&self, step: &'static str) -> usize {
        self.0.lock().get(step).map_or(0, |(_, left)| *left)
    }

    /// How often this step was called.
    pub(crate) fn seen(&self, step: &'static str) -> usize {
        self.1.lock().get(step).copied().unwrap_or(0)
    }

    pub(super) fn ways_left(&self) -> u64 {
        self.2.load(Ordering::Acquire)
    }

    pub(super) fn next(&self, step: &'static str) -> Option<Fault> {
        *self.1.lock().entry(step).or_default() += 1;
        let mut faults = self.0.lock();
        let (fault, left) = faults.get_mut(step)?;
        *left = left.checked_sub(1)?;
        Some(*fault)
    }
}

/// What becomes of the answer to a step that has run.
pub(super) async fn on_its_way<T>(
    fault: Option<Fault>,
    step: &'static str,
    answer: Result<T, Error>,
) -> Result<T, Error> {
    match fault {
        Some(Fault::NoReply | Fault::Stray(_)) => {
            tokio::time::sleep(DEADLINE).await;
            Err(Error::new(ErrorKind::Timeout, step))
        }
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::Slow(time) | Fault::Late(time)) => {
            tokio::time::sleep(time).await;
            answer
        }
        Some(Fault::Odd) => Err(Error::new(ErrorKind::Protocol, step)),
        Some(Fault::Away | Fault::Refused | Fault::Copy(_)) | None => answer,
    }
}
