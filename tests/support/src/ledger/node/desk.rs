//! What handlers do, whatever the framework: write down that they run, work, and answer as they are asked to.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lockgate::HeldLock;
use serde::Deserialize;
use tokio::sync::OnceCell;

use crate::{
    checker::deferred::RunEvent,
    fleet::{
        clock::{self, ns},
        log::Log,
        register::{Registers, Values},
        run::Run,
    },
};

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
    log: Arc<Log>,
    runs: AtomicU64,
    /// Where the registers are, if there are any.
    url: String,
    /// Opened by the first run: before that there is no runtime.
    registers: OnceCell<Registers>,
}

impl Desk {
    pub(super) fn new(log: Arc<Log>, registers: &str) -> Self {
        let (url, registers) = (registers.to_owned(), OnceCell::new());
        Self { log, runs: AtomicU64::new(0), url, registers }
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
    async fn write(&self, resource: &str, fence: u64, read: Values) {
        let written = self.registers().await.write(resource, fence, read.next()).await;
        written.expect("the registers are there");
    }

    /// Status and body.
    pub(super) async fn work(&self, facts: Facts, wish: Wish) -> (u16, String) {
        let Facts { resource, job, lock } = facts;
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let valid = || clock::now() + ns(lock.remaining());
        let (job, attempt) = job.unwrap_or_else(|| ("-".to_owned(), 0));
        let fence = lock.fence().unwrap_or(0);
        let start = RunEvent::Started(run, resource.clone(), job.clone(), attempt, fence, valid());
        let written = Run::start(&self.log, run, &start);
        let read = self.read(&resource, fence).await;
        written.works(wish.ms, || (!lock.remaining().is_zero()).then(valid)).await;
        let wanted = |times: u32| (1..=times).contains(&attempt);
        if wanted(wish.abort) {
            self.log.note(&RunEvent::Aborted(run));
            std::process::abort();
        }
        let status = if wanted(wish.fail) || wanted(wish.panic) { 500 } else { 200 };
        let body = format!("{job}-{attempt}-{fence}-{run}");
        if let Some(values) = read {
            self.write(&resource, fence, values).await;
        }
        written.end(status, &body);
        assert!(!wanted(wish.panic), "asked to panic");
        (status, body)
    }
}
