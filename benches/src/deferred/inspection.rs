//! Figure 4: what a look of operators costs, with 100,000 locks and 1,000,000 jobs in the store.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, to_bytes},
};
use http::{Request, request::Parts};
use lockgate::Store;
use lockgate_axum::{
    admin::{Operator, Permission},
    console,
};
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use super::{
    queue_bench::QueueBench,
    script_times::{self, ScriptTimes},
    step_process::StepProcess,
};
use crate::{
    bench_figure::{BenchFigure, FigureTarget},
    bench_result::BenchResult,
    clock,
    lock_contender::connect_store,
    lock_worker::worker_runtime,
    queue::StepCommand,
    report,
    stats::{nanos_to_millis, to_f64},
};

/// Jobs of each lock.
const JOBS_PER_LOCK: u64 = 10;

/// Pages of each list that are read.
const LISTED_PAGES: usize = 20;

/// Time for which commands are counted while no operator looks.
const UNWATCHED_TIME: Duration = Duration::from_secs(10);

/// Script calls of a check that are listed: a check makes 150,000.
const SLOW_CHECK_MICROS: u32 = 1_000;

/// Targets: time of any script and of the console's snapshot.
const MAX_SCRIPT_MICROS: f64 = 5_000.0;
const MAX_SNAPSHOT_MILLIS: f64 = 100.0;

/// Lists that are read page by page. The third one finds nothing, so it reads until its bound.
const LISTS: [&str; 4] =
    ["jobs?state=pending", "jobs?state=dead", "jobs?state=pending&lock=none", "audit?"];

/// Operator with an open console.
struct Observer {
    runtime: Runtime,
    store: Store,
}

impl Observer {
    fn connect(bench: &QueueBench) -> BenchResult<Self> {
        let runtime = worker_runtime()?;
        let store = runtime.block_on(connect_store(bench.runner.server.port()))?;
        Ok(Self { runtime, store })
    }

    /// Returns the answer to a query of the console, and its time in milliseconds. Each query is
    /// sent to a console of its own, which has no snapshot yet.
    fn ask(&self, query: &str) -> BenchResult<(Value, f64)> {
        self.send(Request::get(format!("/ops/api/{query}")).body(Body::empty())?)
    }

    fn check(&self) -> BenchResult<()> {
        let action = Request::post("/ops/api/actions")
            .header("content-type", "application/json")
            .header("sec-fetch-site", "same-origin")
            .body(Body::from(r#"{"action":"check"}"#))?;
        self.send(action).map(drop)
    }

    fn send(&self, request: Request<Body>) -> BenchResult<(Value, f64)> {
        let guard = |_: &Parts| Some(Operator::new("bench", Permission::Look));
        let console: Router = Router::new().merge(console("/ops", guard).store(&self.store));
        let start = clock::now();
        let (status, body) = self.runtime.block_on(async {
            let (head, body) = console.oneshot(request).await?.into_parts();
            let body = to_bytes(body, usize::MAX).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((head.status, body))
        })?;
        if !status.is_success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok((serde_json::from_slice(&body)?, nanos_to_millis(clock::now() - start)))
    }

    /// Reads the first pages of a list.
    fn list(&self, list: &str) -> BenchResult<()> {
        let mut cursor = Value::Null;
        for _ in 0..LISTED_PAGES {
            let query = match cursor.as_str() {
                Some(cursor) => format!("{list}&cursor={cursor}"),
                None => list.to_owned(),
            };
            let (page, _) = self.ask(&query)?;
            cursor = page["next"].clone();
            if cursor.is_null() {
                break;
            }
        }
        Ok(())
    }

    /// Makes every look that the console offers.
    fn look_at_everything(&self) -> BenchResult<()> {
        LISTS.iter().try_for_each(|list| self.list(list))?;
        let (jobs, _) = self.ask("jobs?state=pending")?;
        let text = |name: &str| jobs["jobs"][0][name].as_str().unwrap_or_default().to_owned();
        self.ask(&format!("job?id={}", text("id")))?;
        self.ask(&format!("lock?key={}", text("lock")))?;
        Ok(())
    }
}

pub(super) fn run(bench: &mut QueueBench) -> BenchResult<Vec<BenchFigure>> {
    let jobs = bench.sizes.many_resources_backlog;
    let locks = jobs / JOBS_PER_LOCK;
    report::print_title(&format!("4. Looks of operators: {locks} locks and {jobs} jobs"));
    let mut holder = StepProcess::start(bench, jobs)?;
    holder.execute(StepCommand::AcquireLocks { resources: locks })?;
    holder.execute(StepCommand::SendRequests { from: 0, to: jobs })?;
    let observer = Observer::connect(bench)?;
    let mut snapshots = Vec::new();
    for _ in 0..bench.runner.settings.rounds {
        let (snapshot, millis) = observer.ask("snapshot")?;
        if snapshot["jobs"]["pending"] != jobs || snapshot["stats"]["locks_held"] != locks {
            return Err(format!("incomplete snapshot: {}", snapshot["stats"]).into());
        }
        snapshots.push(millis);
    }
    let look = |observer: &Observer| {
        observer.look_at_everything()?;
        observer.ask("snapshot").map(drop)
    };
    let names = script_times::observe_loaded_scripts(bench, |_| look(&observer))?;
    let mut times = ScriptTimes::default();
    times.record(bench, |_| look(&observer))?;
    let start = clock::now();
    times.record_slower_than(bench, SLOW_CHECK_MICROS, |_| observer.check())?;
    println!("  `lockgate check` takes {:.0} s", nanos_to_millis(clock::now() - start) / 1e3);
    times.print_table(&names);
    drop(holder);
    let unwatched_commands = count_unwatched_commands(bench)?;
    Ok(vec![
        figure("4h", "longest script of a look", "us", MAX_SCRIPT_MICROS, times.longest()),
        figure("4i", "snapshot of the console", "ms", MAX_SNAPSHOT_MILLIS, snapshots),
        figure("4j", "commands while nobody looks", "", 0.0, Some(unwatched_commands)),
    ])
}

fn figure(
    id: &'static str,
    description: &str,
    unit: &'static str,
    max: f64,
    round_values: impl IntoIterator<Item = f64>,
) -> BenchFigure {
    BenchFigure {
        id,
        description: description.into(),
        unit,
        target: FigureTarget::AtMost(max),
        round_values: round_values.into_iter().collect(),
    }
}

/// Counts the commands of a process whose console was open before.
fn count_unwatched_commands(bench: &mut QueueBench) -> BenchResult<f64> {
    bench.runner.server.flush()?;
    let observer = Observer::connect(bench)?;
    observer.ask("snapshot")?;
    let before = bench.runner.server.read_counters()?;
    observer.runtime.block_on(async { tokio::time::sleep(UNWATCHED_TIME).await });
    let after = bench.runner.server.read_counters()?;
    let mut count = 0;
    for (command, calls) in after.calls {
        let new_calls = calls - before.calls.get(&command).copied().unwrap_or_default();
        if new_calls > 0 {
            println!("  while nobody looks: {new_calls} x {command} in {UNWATCHED_TIME:?}");
        }
        count += new_calls;
    }
    Ok(to_f64(count))
}
