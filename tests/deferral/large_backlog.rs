//! Row 14: 100,000 requests for one resource, and 100,000 resources due at once.

#[path = "large_backlog/bulk_enqueuer.rs"]
mod bulk_enqueuer;
#[path = "large_backlog/slowlog_monitor.rs"]
mod slowlog_monitor;

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, NodeSetup},
};

use self::{
    bulk_enqueuer::{BulkEnqueuer, resource_shard, shard_resources},
    slowlog_monitor::SlowlogMonitor,
};
use super::{SECOND, start_fleet};

/// The resource that has many requests.
const CROWDED_RESOURCE: &str = "10000007";

/// Resources that are due at once: a million take ten minutes on a machine of two cores, and are run by
/// `LOCKGATE_DUE=1000000`.
const DUE_RESOURCE_COUNT: usize = 100_000;

/// Of those, the first ones have so many requests each, one behind the other: more than are looked at.
const MULTI_JOB_RESOURCES: [usize; 2] = [100, 100];

/// How many are looked at, of all that run.
const CHECKED_RUNS: usize = 1_500;

/// What a worker knows ahead, of whatever shard, and a look's names.
const MAX_PREFETCHED: usize = 1_100;

async fn count_runs(fleet: &JobFleet, of: impl Fn(&str) -> bool) -> usize {
    fleet.runs().iter().filter(|run| of(&run.resource)).count()
}

/// Of the crowd, before the last of the others.
fn crowded_runs_before_last_other(fleet: &JobFleet) -> usize {
    let runs = fleet.runs();
    let last = runs.iter().rposition(|run| run.resource != CROWDED_RESOURCE).unwrap_or(0);
    runs[..last].iter().filter(|run| run.resource == CROWDED_RESOURCE).count()
}

#[tokio::test]
async fn hundred_thousand_jobs_of_one_resource_delay_no_others() {
    let mut fleet = start_fleet().await;
    let web = fleet.start_node(NodeSetup::new(WebFramework::Axum).without_worker()).await;
    let crowd = BulkEnqueuer::capture_call(&fleet, web, CROWDED_RESOURCE).await;
    crowd.enqueue_all(&fleet, std::iter::repeat_n(CROWDED_RESOURCE, 100_000)).await;
    let watch = SlowlogMonitor::start(&fleet).await;
    let lock = fleet.hold_lock(CROWDED_RESOURCE).await;
    // The last one of all: neither a look at it nor its end goes past all those before it.
    for _ in 0..12 {
        let last = fleet.deferrable_request(web, CROWDED_RESOURCE).send_accepted().await;
        assert_eq!(fleet.query_status(web, &last).await.state, "queued");
        assert_eq!(fleet.cancel_job(web, &last).await, 204);
    }
    let _worker = fleet.start_node(NodeSetup::new(WebFramework::Actix)).await;
    lock.release().await;
    fleet.wait_for_run_start(&crowd.id).await;
    // Others of the same shard are not behind them.
    let others: Vec<_> =
        shard_resources(crowd.shard).filter(|name| name != CROWDED_RESOURCE).take(20).collect();
    crowd.enqueue_all(&fleet, others.iter().map(String::as_str)).await;
    let before = count_runs(&fleet, |resource| resource == CROWDED_RESOURCE).await;
    let started = Instant::now();
    while count_runs(&fleet, |resource| resource != CROWDED_RESOURCE).await < others.len() {
        assert!(started.elapsed() < 20 * SECOND, "others wait behind the crowd");
        tokio::time::sleep(SECOND / 50).await;
    }
    let meanwhile = crowded_runs_before_last_other(&fleet).saturating_sub(before);
    println!("figure: of the crowd before 20 others {meanwhile} runs");
    assert!(meanwhile < 5_000, "{meanwhile} of the crowd have run before {} others", others.len());
    while count_runs(&fleet, |resource| resource == CROWDED_RESOURCE).await < 200 {
        assert!(started.elapsed() < 20 * SECOND, "the crowd does not move");
        tokio::time::sleep(SECOND / 50).await;
    }
    watch.assert_no_long_scripts(&fleet, &["enqueue_jobs", "read_job", "cancel_job"]).await;
    assert_serial_runs(&fleet);
    fleet.close_unchecked();
}

/// How many are due at once.
fn due_resource_count() -> usize {
    std::env::var("LOCKGATE_DUE")
        .ok()
        .and_then(|due| due.parse().ok())
        .unwrap_or(DUE_RESOURCE_COUNT)
}

#[tokio::test]
async fn hundred_thousand_due_jobs_run_in_order() {
    let mut fleet = start_fleet().await;
    let web = fleet.start_node(NodeSetup::new(WebFramework::Actix).without_worker()).await;
    let crowd = BulkEnqueuer::capture_call(&fleet, web, CROWDED_RESOURCE).await;
    let mut all = (10_000_000..).map(|n: u32| n.to_string());
    let beside = all.find(|name| resource_shard(name) != crowd.shard).expect("a shard");
    let other = BulkEnqueuer::capture_call(&fleet, web, &beside).await;
    let due: Vec<_> = shard_resources(crowd.shard)
        .filter(|name| name != CROWDED_RESOURCE)
        .take(due_resource_count())
        .collect();
    let (began, due) = (Instant::now(), due.iter().map(String::as_str).collect::<Vec<_>>());
    let [greedy, each] = MULTI_JOB_RESOURCES;
    crowd.enqueue_all(&fleet, due[..greedy].iter().copied().cycle().take(greedy * each)).await;
    crowd.enqueue_all(&fleet, due[greedy..].iter().copied()).await;
    println!("{} due at once were stored in {:?}", due.len(), began.elapsed());
    let watch = SlowlogMonitor::start(&fleet).await;
    let _worker = fleet.start_node(NodeSetup::new(WebFramework::Axum)).await;
    wait_for_runs(&fleet, CHECKED_RUNS / 2).await;
    // A few of another shard come last of all.
    let last: Vec<_> =
        shard_resources(other.shard).filter(|name| *name != beside).take(20).collect();
    other.enqueue_all(&fleet, last.iter().map(String::as_str)).await;
    let before = fleet.runs().len();
    wait_for_runs(&fleet, CHECKED_RUNS).await;
    watch.assert_no_long_scripts(&fleet, &["claim_settle_batch"]).await;
    assert_due_order(&fleet, &due).await;
    while count_runs(&fleet, |resource| last.iter().any(|name| name == resource)).await < last.len()
    {
        let meanwhile = fleet.runs().len() - before;
        assert!(meanwhile < 2 * MAX_PREFETCHED, "{meanwhile} have run before 20 of another shard");
        tokio::time::sleep(SECOND / 50).await;
    }
    println!("figure: run before 20 of another shard {} others", fleet.runs().len() - before);
    assert_serial_runs(&fleet);
    fleet.close_unchecked();
}

/// Nothing was done to anybody, and most of them wait still: of those that have run each has once, those of a resource
/// in the order in which they were stored, each with a larger fence, when the one before it had ended.
fn assert_serial_runs(fleet: &JobFleet) {
    let mut before = HashMap::<String, (u64, u64, Option<u64>)>::new();
    for run in fleet.runs() {
        let job = run.job_id.as_deref().expect("all are deferred");
        // The ids of those that a node has stored itself, before all others, are no small numbers.
        let number = u64::from_str_radix(job[2..].trim_start_matches('0'), 16);
        let place =
            if job[2..].starts_with("0000000000000000") { number.unwrap_or(0) + 1 } else { 0 };
        assert_eq!(run.attempt, 1, "{run:?}");
        let ended = run.end.as_ref().map(|end| end.ended_at);
        let last = before.insert(run.resource.clone(), (place, run.fence, ended));
        if let Some((last, fence, end)) = last {
            assert!(last < place || place == 0 && last == 0, "{run:?} comes after number {last}");
            assert!(fence < run.fence, "{run:?} comes after fence {fence}");
            assert!(end.is_some_and(|end| end <= run.started_at), "{run:?} began before {end:?}");
        }
    }
}

async fn wait_for_runs(fleet: &JobFleet, many: usize) {
    let began = Instant::now();
    while fleet.runs().len() < many {
        assert!(began.elapsed() < 60 * SECOND, "{} have run", fleet.runs().len());
        tokio::time::sleep(SECOND / 10).await;
    }
}

/// Those that came due first have run first, but for what is known ahead. Those that have more behind them come again by
/// a message, and so before others, but they take turns with them: what is due is looked up all the while.
async fn assert_due_order(fleet: &JobFleet, due: &[&str]) {
    let place: HashMap<_, _> = due.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let mut of_each = BTreeMap::<usize, usize>::new();
    for run in fleet.runs() {
        if let Some(at) = place.get(&*run.resource) {
            *of_each.entry(*at).or_default() += 1;
        }
    }
    let (served, last) = (of_each.len(), of_each.keys().next_back().copied().unwrap_or(0));
    let others = of_each.range(MULTI_JOB_RESOURCES[0]..).count();
    let runs: Vec<_> = of_each.range(..MULTI_JOB_RESOURCES[0]).map(|(_, times)| *times).collect();
    println!("{others} others have run, the {last}th the last of them; of the greedy: {runs:?}");
    assert!(
        last < served + MAX_PREFETCHED,
        "the {last}th has run, and of those before it {served}"
    );
    assert!(others >= CHECKED_RUNS / 20, "{others} others have run");
    let (least, most) = (runs.iter().min(), runs.iter().max());
    assert!(
        runs.len() == MULTI_JOB_RESOURCES[0] && least.zip(most).is_some_and(|(a, b)| 4 * a >= *b),
        "{runs:?}"
    );
}
