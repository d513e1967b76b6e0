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

/// Instructions in the query of a request.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct HandlerInstructions {
    /// Duration of the run.
    ms: u64,
    /// Number of attempts that answer 500.
    fail: u32,
    /// Number of attempts that abort the process.
    abort: u32,
    /// Number of attempts that panic.
    panic: u32,
}

/// Data of a request as the handler sees them.
pub(super) struct HandlerContext {
    pub(super) resource: String,
    pub(super) job: Option<(String, u32)>,
    pub(super) lock: HeldLock,
}

pub(super) struct RecordingHandler {
    event_log: Arc<EventLog>,
    next_run: AtomicU64,
    /// URL of the registers; empty if there are none.
    registers_url: String,
    /// Connected by the first run, since there is no runtime before.
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

    /// Reads the register of the resource, if there is one and no later run has used it. Afterwards
    /// earlier runs cannot write.
    async fn read_register(&self, resource: &str, fence: u64) -> Option<RegisterValues> {
        if self.registers_url.is_empty() {
            return None;
        }
        self.open_registers().await.read(resource, fence).await.expect("the registers are there")
    }

    /// Writes the incremented value, unless a later run has used the register.
    async fn write_register(&self, resource: &str, fence: u64, values: RegisterValues) {
        let written =
            self.open_registers().await.write(resource, fence, values.incremented()).await;
        written.expect("the registers are there");
    }

    /// Returns status and body.
    pub(super) async fn handle_run(
        &self,
        context: HandlerContext,
        instructions: HandlerInstructions,
    ) -> (u16, String) {
        let HandlerContext { resource, job, lock } = context;
        let run = self.next_run.fetch_add(1, Ordering::Relaxed);
        let validity_end = || clock::now_ns() + duration_ns(lock.remaining());
        let (job, attempt) = job.unwrap_or_else(|| ("-".to_owned(), 0));
        let fence = lock.fence().unwrap_or(0);
        let start = RunEvent::Started {
            run,
            resource: resource.clone(),
            job: job.clone(),
            attempt,
            fence,
            valid_until: validity_end(),
        };
        let recorder = RunRecorder::start(&self.event_log, run, &start);
        let read_values = self.read_register(&resource, fence).await;
        recorder
            .work_for(instructions.ms, || (!lock.remaining().is_zero()).then(validity_end))
            .await;
        let applies = |times: u32| (1..=times).contains(&attempt);
        if applies(instructions.abort) {
            self.event_log.record(&RunEvent::Aborted { run });
            std::process::abort();
        }
        let status =
            if applies(instructions.fail) || applies(instructions.panic) { 500 } else { 200 };
        let body = format!("{job}-{attempt}-{fence}-{run}");
        if let Some(values) = read_values {
            self.write_register(&resource, fence, values).await;
        }
        recorder.finish(status, &body);
        assert!(!applies(instructions.panic), "asked to panic");
        (status, body)
    }
}
