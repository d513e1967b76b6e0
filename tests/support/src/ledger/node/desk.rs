//! What handlers do, whatever the framework: write down that they run, work, and answer as they are asked to.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use lockgate::HeldLock;
use lockgate_history::deferred::Event;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::Setup;
use crate::{
    history::{
        clock::{self, ns},
        log::Log,
        register::{Registers, Values},
    },
    ledger::stall::Stalls,
};

/// Time between two notes of a run that it is still sure of its lock.
const TICK: Duration = Duration::from_millis(25);

/// What a request wants.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wish {
    /// Time it takes.
    ms: u64,
    /// So many attempts answer 500.
    fail: u32,
    /// So many attempts end the process in the middle.
    abort: u32,
    /// So many attempts panic.
    panic: u32,
}

/// What a handler knows.
pub(super) struct Facts {
    pub(super) resource: String,
    pub(super) job: Option<(String, u32)>,
    pub(super) lock: HeldLock,
}

pub(super) struct Desk {
    log: Log,
    runs: AtomicU64,
    /// Where the registers are, if there are any.
    url: String,
    /// Opened by the first run: before that there is no runtime.
    registers: OnceCell<Registers>,
}

impl Desk {
    pub(super) fn open(setup: &Setup) -> Self {
        let log = Log::open(&setup.log).expect("the log can be made");
        let (url, registers) = (setup.registers.clone(), OnceCell::new());
        Self { log, runs: AtomicU64::new(0), url, registers }
    }

    /// For a thread of its own, for as long as there is this process.
    pub(super) fn note_stalls(&self) {
        let mut stalls = Stalls::default();
        loop {
            for (since, to) in stalls.tick() {
                self.log.note(&Event::Stall(since, to));
            }
        }
    }

    async fn registers(&self) -> &Registers {
        let open = || async {
            let registers = Registers::open(&self.url).await;
            registers.expect("the registers are there")
        };
        self.registers.get_or_init(open).await
    }

    /// What its resource's register has, if there is one, and unless a later run has been there. From now on no earlier run
    /// can write.
    async fn read(&self, resource: &str, fence: u64) -> Option<Values> {
        if self.url.is_empty() {
            return None;
        }
        self.registers().await.read(resource, fence).await.expect("the registers are there")
    }

    /// One more; unless a later run has been there.
    async fn write(&self, resource: &str, fence: u64, Values { fenced, plain }: Values) {
        let next = Values { fenced: fenced + 1, plain: plain + 1 };
        let written = self.registers().await.write(resource, fence, next).await;
        written.expect("the registers are there");
    }

    /// Status and body.
    pub(super) async fn work(&self, facts: Facts, wish: Wish) -> (u16, String) {
        let Facts { resource, job, lock } = facts;
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let valid = || clock::now() + ns(lock.remaining());
        let (job, attempt) = job.unwrap_or_else(|| ("-".to_owned(), 0));
        let fence = lock.fence().unwrap_or(0);
        let start = Event::Start(run, resource.clone(), job.clone(), attempt, fence, valid());
        self.log.note(&start);
        let mut given_up = GivenUp { log: &self.log, run: Some(run) };
        let read = self.read(&resource, fence).await;
        let mut left = Duration::from_millis(wish.ms);
        while !left.is_zero() {
            let step = left.min(TICK);
            tokio::time::sleep(step).await;
            left -= step;
            if !lock.remaining().is_zero() {
                self.log.note(&Event::Holds(run, valid()));
            }
        }
        let wanted = |times: u32| (1..=times).contains(&attempt);
        if wanted(wish.abort) {
            self.log.note(&Event::Abort(run));
            std::process::abort();
        }
        let status = if wanted(wish.fail) || wanted(wish.panic) { 500 } else { 200 };
        let body = format!("{job}-{attempt}-{fence}-{run}");
        if let Some(values) = read {
            self.write(&resource, fence, values).await;
        }
        given_up.run = None;
        self.log.note(&Event::End(run, status, body.clone()));
        assert!(!wanted(wish.panic), "asked to panic");
        (status, body)
    }
}

/// Says so if the handler does not come to its end.
struct GivenUp<'a> {
    log: &'a Log,
    run: Option<u64>,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run {
            self.log.note(&Event::Drop(run));
        }
    }
}
