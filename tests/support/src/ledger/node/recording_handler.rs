//! `RecordingHandler`: handler for both frameworks that records its runs, works, and responds as
//! instructed.

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
        clock::{self, duration_ns},
        event_log::EventLog,
        register_client::{RegisterClient, RegisterValues},
        run_recorder::RunRecorder,
    },
};

/// What a request wants.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct HandlerInstructions {
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
pub(super) struct HandlerContext {
    pub(super) resource: String,
    pub(super) job: Option<(String, u32)>,
    pub(super) lock: HeldLock,
}

pub(super) struct RecordingHandler {
    event_log: Arc<EventLog>,
    next_run: AtomicU64,
    /// Where the registers are, if there are any.
    registers_url: String,
    /// Opened by the first run: before that there is no runtime.
    registers: OnceCell<RegisterClient>,
}

impl RecordingHandler {
    pub(super) fn new(log: Arc<EventLog>, registers: &str) -> Self {
        let (url, registers) = (registers.to_owned(), OnceCell::new());
        Self { event_log: log, next_run: AtomicU64::new(0), registers_url: url, registers }
    }

    async fn open_registers(&self) -> &RegisterClient {
        let open = || async {
            let registers = RegisterClient::connect(&self.registers_url).await;
            registers.expect("the registers are there")
        };
        self.registers.get_or_init(open).await
    }

    /// What its resource's register has, if there is one, and unless a later run has been there. From now on no earlier run
    /// can write.
    async fn read_register(&self, resource: &str, fence: u64) -> Option<RegisterValues> {
        if self.registers_url.is_empty() {
            return None;
        }
        self.open_registers().await.read(resource, fence).await.expect("the registers are there")
    }

    /// One more; unless a later run has been there.
    async fn write_register(&self, resource: &str, fence: u64, read: RegisterValues) {
        let written = self.open_registers().await.write(resource, fence, read.incremented()).await;
        written.expect("the registers are there");
    }

    /// Status and body.
    pub(super) async fn handle_run(
        &self,
        facts: HandlerContext,
        wish: HandlerInstructions,
    ) -> (u16, String) {
        let HandlerContext { resource, job, lock } = facts;
        let run = self.next_run.fetch_add(1, Ordering::Relaxed);
        let valid = || clock::now_ns() + duration_ns(lock.remaining());
        let (job, attempt) = job.unwrap_or_else(|| ("-".to_owned(), 0));
        let fence = lock.fence().unwrap_or(0);
        let start = RunEvent::Started {
            run,
            resource: resource.clone(),
            job: job.clone(),
            attempt,
            fence,
            valid_until: valid(),
        };
        let written = RunRecorder::start(&self.event_log, run, &start);
        let read = self.read_register(&resource, fence).await;
        written.work_for(wish.ms, || (!lock.remaining().is_zero()).then(valid)).await;
        let wanted = |times: u32| (1..=times).contains(&attempt);
        if wanted(wish.abort) {
            self.event_log.record(&RunEvent::Aborted { run });
            std::process::abort();
        }
        let status = if wanted(wish.fail) || wanted(wish.panic) { 500 } else { 200 };
        let body = format!("{job}-{attempt}-{fence}-{run}");
        if let Some(values) = read {
            self.write_register(&resource, fence, values).await;
        }
        written.finish(status, &body);
        assert!(!wanted(wish.panic), "asked to panic");
        (status, body)
    }
}
