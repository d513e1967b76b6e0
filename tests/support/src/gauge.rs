//! What a process has taken of its machine: memory, file descriptors, tasks.

use std::{fs, io::Write as _, time::Duration};

use tokio::runtime::Handle;

use crate::history::Process;

/// Until what was begun has ended: a lease, and what is given back in the background.
const SETTLES: Duration = Duration::from_secs(3);

/// Of one process at rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// Resident memory, KiB.
    pub(crate) memory: u64,
    pub(crate) files: u64,
    /// None of one that is not asked, or does not say.
    pub(crate) tasks: Option<u64>,
}

impl Gauge {
    /// Of a process that has none of our tasks.
    pub(crate) fn of(pid: u32) -> Self {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Self {
            memory: pages.unwrap_or(0) * 4,
            files: u64::try_from(files).unwrap_or(u64::MAX),
            tasks: None,
        }
    }

    /// Of one of ours, which is asked how many tasks it has.
    pub(crate) async fn ask(process: &mut Process) -> Self {
        let mut gauge = process.pid().map(Self::of).unwrap_or_default();
        process.tell("gauge").await;
        let said = tokio::time::timeout(Duration::from_secs(20), process.says()).await;
        let said = said.ok().flatten().unwrap_or_default();
        gauge.tasks = said.strip_prefix("gauge ").and_then(|n| n.parse().ok());
        gauge
    }
}

/// Says how many tasks this process has, once it has settled.
pub(crate) fn tell(handle: &Handle) {
    let metrics = handle.metrics();
    handle.spawn(async move {
        tokio::time::sleep(SETTLES).await;
        println!("gauge {}", metrics.num_alive_tasks());
        let _ = std::io::stdout().flush();
    });
}
