//! A process that takes deferred requests apart: it accepts, releases and runs them one step at a time, each
//! told by a word, so that the conductor can count what the server does in every step.
//!
//! A run begins, and ends when it is let: so many are let end, and the step is over when as many more have
//! begun. In between lie exactly so many acknowledgements, and as many claims.

use std::{
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};

use super::{
    Kind, Queue as _,
    plan::{BYTES, Plan},
    requests::Requests,
    seen::Seen,
};
use crate::{
    clock,
    lifeline::{Orders, say},
    outcome::Outcome,
    worker::runtime,
};

const AT_MOST: Duration = Duration::from_secs(1800);

/// Requests that are sent at once.
const AT_ONCE: u64 = 32;

/// What it is told to do. It answers with [`Done`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Word {
    /// Take the locks of so many resources.
    Hold { resources: u64 },
    /// Send requests of these numbers, which are divided among the resources.
    Send { from: u64, to: u64 },
    /// Give all locks back.
    Release,
    /// Start the worker, if it is not there, and wait until so many more runs have begun.
    Work { concurrency: usize, begun: u64 },
    /// Let so many runs end, and wait until as many more have begun, or none if they were the last.
    Let { runs: u64, last: bool },
}

/// How long it took, in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) took: u64,
    /// Runs of one job beyond its first, and of what is no job.
    pub(crate) wrong: u64,
}

/// Runs that begin, and wait until they are let end.
#[derive(Debug)]
pub(super) struct Turnstile {
    pub(super) seen: Seen,
    begun: AtomicU64,
    last: AtomicU64,
    may_end: Semaphore,
}

impl Turnstile {
    pub(super) async fn pass(&self, body: &[u8]) {
        self.seen.started_raw(body);
        self.last.fetch_max(clock::now(), Relaxed);
        self.begun.fetch_add(1, Relaxed);
        if let Ok(permit) = self.may_end.acquire().await {
            permit.forget();
        }
    }

    async fn begun(&self, runs: u64) -> Outcome<()> {
        let give_up = clock::now() + clock::nanos(Duration::from_secs(60));
        while self.begun.load(Relaxed) < runs {
            if clock::now() > give_up {
                let begun = self.begun.load(Relaxed);
                return Err(format!("{begun} runs began instead of {runs}").into());
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        Ok(())
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) port: u16,
    /// All that will ever be sent.
    pub(crate) jobs: u64,
}

pub(crate) fn main(start: &str) -> Outcome<()> {
    let Start { port, jobs } = serde_json::from_str(start)?;
    let orders = Orders::listen("deferred requests", AT_MOST);
    let runtime = runtime()?;
    let mut plan = Plan::push(Kind::Busy, port, 1);
    plan.resources = 0;
    let mut rig = runtime.block_on(Rig::new(plan, jobs))?;
    say("ready")?;
    while let Ok(word) = orders.next() {
        let from = clock::now();
        let until = runtime.block_on(rig.follow(serde_json::from_str(&word)?))?;
        let told = rig.turnstile.seen.tell();
        let done = Done { took: until.saturating_sub(from), wrong: told.twice + told.strange };
        say(&serde_json::to_string(&done)?)?;
    }
    process::exit(0)
}

struct Rig {
    plan: Plan,
    requests: Arc<Requests>,
    turnstile: Arc<Turnstile>,
    worker: Option<JoinHandle<()>>,
    /// Runs that have been waited for.
    expected: u64,
}

impl Rig {
    async fn new(plan: Plan, jobs: u64) -> Outcome<Self> {
        let requests = Arc::new(Requests::pushes(&plan).await?);
        let turnstile = Turnstile {
            seen: Seen::new(jobs, BYTES, false),
            begun: AtomicU64::new(0),
            last: AtomicU64::new(0),
            may_end: Semaphore::new(0),
        };
        Ok(Self { plan, requests, turnstile: Arc::new(turnstile), worker: None, expected: 0 })
    }

    /// The moment at which it was done.
    async fn follow(&mut self, word: Word) -> Outcome<u64> {
        match word {
            Word::Hold { resources } => {
                self.plan.resources = resources;
                self.requests = Arc::new(Requests::pushes(&self.plan).await?);
            }
            Word::Send { from, to } => self.send(from, to).await?,
            Word::Release => self.requests.let_go().await?,
            Word::Work { concurrency, begun } => {
                let plan = Plan::run(Kind::Busy, self.plan.port, concurrency, 0);
                if self.worker.is_none() {
                    let turnstile = Arc::clone(&self.turnstile);
                    self.worker = Some(Requests::turns(&plan, turnstile).await?);
                }
                self.expected += begun;
                self.turnstile.begun(self.expected).await?;
            }
            Word::Let { runs, last } => {
                self.turnstile.may_end.add_permits(usize::try_from(runs)?);
                if !last {
                    self.expected += runs;
                    self.turnstile.begun(self.expected).await?;
                    return Ok(self.turnstile.last.load(Relaxed));
                }
            }
        }
        Ok(clock::now())
    }

    async fn send(&self, from: u64, to: u64) -> Outcome<()> {
        let next = Arc::new(AtomicU64::new(from));
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (next, failed) = (Arc::clone(&next), Arc::clone(&failed));
            let requests = Arc::clone(&self.requests);
            tasks.spawn(async move {
                loop {
                    let job = next.fetch_add(1, Relaxed);
                    if job >= to {
                        return;
                    }
                    if let Err(error) = requests.push(job).await {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.get_or_insert_with(|| error.to_string());
                        return;
                    }
                }
            });
        }
        tasks.join_all().await;
        match failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}
