//! Resource usage of a process: memory, file descriptors, tasks.

use std::{fs, thread::ThreadId, time::Duration};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::fleet::{ChildProcess, process_control::print_line};

/// Until what was begun has ended: a lease, and what is given back in the background.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Of one process at rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    /// Resident memory, KiB. None, as of the others, where nobody can tell.
    pub(crate) memory_kib: Option<u64>,
    pub(crate) open_files: Option<u64>,
    /// None of one that is not asked, or does not say.
    pub(crate) alive_tasks: Option<u64>,
}

impl ResourceUsage {
    /// Of a process that has none of our tasks.
    pub(crate) fn of_process(pid: u32) -> Self {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count);
        Self {
            memory_kib: pages.map(|pages| pages * 4),
            open_files: files.and_then(|files| u64::try_from(files).ok()),
            alive_tasks: None,
        }
    }

    /// Of one of ours, which is asked how many tasks it has.
    pub(crate) async fn query_process(process: &mut ChildProcess) -> Self {
        let mut gauge = process.pid().map(Self::of_process).unwrap_or_default();
        process.send_line("gauge").await;
        let said = tokio::time::timeout(Duration::from_secs(20), process.next_line()).await;
        let said = said.ok().flatten().unwrap_or_default();
        gauge.alive_tasks = said.strip_prefix("gauge ").and_then(|n| n.parse().ok());
        gauge
    }
}

/// Runtimes of this process beside the one that tells, by the thread that has said so.
static OTHER_RUNTIMES: Mutex<Vec<(ThreadId, RuntimeMetrics)>> = Mutex::new(Vec::new());

/// The tasks of the runtime that this is called on count too: a framework may have one for each of its threads. (Those
/// that never leave their thread are in none of the counts; what the library leaves behind is not among them.)
pub(crate) fn register_runtime() {
    let (here, metrics) = (std::thread::current().id(), Handle::current().metrics());
    let mut others = OTHER_RUNTIMES.lock();
    others.retain(|(thread, _)| *thread != here);
    others.push((here, metrics));
}

/// Says how many tasks this process has, once it has settled.
pub(crate) fn report_task_count(handle: &Handle) {
    let metrics = handle.metrics();
    handle.spawn(async move {
        tokio::time::sleep(SETTLE_TIME).await;
        let others: usize = OTHER_RUNTIMES.lock().iter().map(|(_, of)| of.num_alive_tasks()).sum();
        print_line(&format!("gauge {}", metrics.num_alive_tasks() + others));
    });
}
