//! What a process has taken of its machine: memory, file descriptors, tasks.

use std::{fs, thread::ThreadId, time::Duration};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::fleet::{Process, orders::say};

/// Until what was begun has ended: a lease, and what is given back in the background.
const SETTLES: Duration = Duration::from_secs(3);

/// Of one process at rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gauge {
    /// Resident memory, KiB. None, as of the others, where nobody can tell.
    pub(crate) memory: Option<u64>,
    pub(crate) files: Option<u64>,
    /// None of one that is not asked, or does not say.
    pub(crate) tasks: Option<u64>,
}

impl Gauge {
    /// Of a process that has none of our tasks.
    pub(crate) fn of(pid: u32) -> Self {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count);
        Self {
            memory: pages.map(|pages| pages * 4),
            files: files.and_then(|files| u64::try_from(files).ok()),
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

/// Runtimes of this process beside the one that tells, by the thread that has said so.
static OTHERS: Mutex<Vec<(ThreadId, RuntimeMetrics)>> = Mutex::new(Vec::new());

/// The tasks of the runtime that this is called on count too: a framework may have one for each of its threads. (Those
/// that never leave their thread are in none of the counts; what the library leaves behind is not among them.)
pub(crate) fn counts_here() {
    let (here, metrics) = (std::thread::current().id(), Handle::current().metrics());
    let mut others = OTHERS.lock();
    others.retain(|(thread, _)| *thread != here);
    others.push((here, metrics));
}

/// Says how many tasks this process has, once it has settled.
pub(crate) fn tell(handle: &Handle) {
    let metrics = handle.metrics();
    handle.spawn(async move {
        tokio::time::sleep(SETTLES).await;
        let others: usize = OTHERS.lock().iter().map(|(_, of)| of.num_alive_tasks()).sum();
        say(&format!("gauge {}", metrics.num_alive_tasks() + others));
    });
}
