//! What a process has taken of its machine: memory, file descriptors, tasks.

use std::{collections::BTreeMap, fmt, fs, io::Write as _, time::Duration};

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
    pub(crate) tasks: u64,
}

impl fmt::Display for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, files, tasks } = self;
        write!(f, "{} MiB, {files} files, {tasks} tasks", memory / 1024)
    }
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
            tasks: 0,
        }
    }

    /// Of one of ours, which is asked how many tasks it has.
    pub(crate) async fn ask(process: &mut Process) -> Self {
        let mut gauge = process.pid().map(Self::of).unwrap_or_default();
        process.tell("gauge").await;
        let said = tokio::time::timeout(Duration::from_secs(20), process.says()).await;
        let said = said.ok().flatten().unwrap_or_default();
        gauge.tasks = said.strip_prefix("gauge ").and_then(|n| n.parse().ok()).unwrap_or(u64::MAX);
        gauge
    }

    /// Whether this is more than that, by more than chance.
    fn outgrows(&self, first: &Self) -> bool {
        self.memory > first.memory * 5 / 4 + 16 * 1024
            || self.files > first.files + 8
            || self.tasks > first.tasks + 8
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

/// What was seen each time that all were at rest.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<(BTreeMap<String, Gauge>, u64)>);

impl Samples {
    pub(crate) fn add(&mut self, gauges: BTreeMap<String, Gauge>, keys: u64) {
        self.0.push((gauges, keys));
    }

    /// First and last, told; and what has grown.
    pub(crate) fn compare(&self) -> (Vec<String>, Vec<String>) {
        let [first, .., last] = &self.0[..] else { return (Vec::new(), Vec::new()) };
        let (mut told, mut wrong) = (Vec::new(), Vec::new());
        for (name, was) in &first.0 {
            let Some(is) = last.0.get(name) else { continue };
            let line = format!("{name}: {was} at first, {is} at last");
            if is.outgrows(was) {
                wrong.push(line.clone());
            }
            told.push(line);
        }
        let line = format!("keys: {} at first, {} at last", first.1, last.1);
        if last.1 > first.1 * 5 / 4 + 64 {
            wrong.push(line.clone());
        }
        told.push(line);
        told.push(format!("{} samples", self.0.len()));
        (told, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_told() {
        let samples = |of: &dyn Fn(u64) -> (Gauge, u64)| {
            let mut samples = Samples::default();
            for minute in 0..20 {
                let (gauge, keys) = of(minute);
                samples.add([("one".to_owned(), gauge)].into(), keys);
            }
            samples.compare().1.len()
        };
        let flat = Gauge { memory: 40_000, files: 20, tasks: 9 };
        assert_eq!(samples(&|n| (Gauge { memory: 40_000 + n % 3 * 1000, ..flat }, 64)), 0);
        assert_eq!(samples(&|n| (Gauge { memory: 40_000 + n * 2000, ..flat }, 64)), 1);
        assert_eq!(samples(&|n| (Gauge { files: 20 + n, ..flat }, 64)), 1);
        assert_eq!(samples(&|n| (Gauge { tasks: 9 + n, ..flat }, 64)), 1);
        assert_eq!(samples(&|n| (flat, 64 + n * 10)), 1);
    }
}
