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

/// Resource with a large backlog.
const CROWDED_RESOURCE: &str = "10000007";

/// Resources that are due at once. `LOCKGATE_DUE=1000000` sets a million, which takes ten minutes
/// on two cores.
const DUE_RESOURCE_COUNT: usize = 100_000;

/// Number of resources with several jobs, and of jobs of each: more than one poll returns.
const MULTI_JOB_RESOURCES: [usize; 2] = [100, 100];

/// Number of runs that are checked.
const CHECKED_RUNS: usize = 1_500;

/// Jobs that a worker may prefetch, plus the names that one poll returns.
const MAX_PREFETCHED: usize = 1_100;

async fn count_runs(fleet: &JobFleet, matches_resource: impl Fn(&str) -> bool) -> usize {
    fleet.runs().iter().filter(|run| matches_resource(&run.resource)).count()
}

/// Returns the number of runs of the crowded resource before the last run of any other one.
fn crowded_runs_before_last_other(fleet: &JobFleet) -> usize {
    let runs = fleet.runs();
    let last = runs.iter().rposition(|run| run.resource != CROWDED_RESOURCE).unwrap_or(0);
    runs[..last].iter().filter(|run| run.resource == CROWDED_RESOURCE).count()
}

#[tokio::test]
async fn hundred_thousand_jobs_of_one_resource_delay_no_others() {
    let mut fleet = start_fleet().await;
    let web = fleet.start_node(NodeSetup::new(WebFramework::Axum).without_worker()).await;
    let enqueuer = BulkEnqueuer::capture_call(&fleet, web, CROWDED_RESOURCE).await;
    enqueuer.enqueue_all(&fleet, std::iter::repeat_n(CROWDED_RESOURCE, 100_000)).await;
    let slowlog = SlowlogMonitor::start(&fleet).await;
    let lock = fleet.hold_lock(CROWDED_RESOURCE).await;
    // Status and cancellation of the last job must not scan the jobs before it.
    for _ in 0..12 {
        let last_job = fleet.deferrable_request(web, CROWDED_RESOURCE).send_accepted().await;
        assert_eq!(fleet.query_status(web, &last_job).await.state, "queued");
        assert_eq!(fleet.cancel_job(web, &last_job).await, 204);
    }
    let _worker = fleet.start_node(NodeSetup::new(WebFramework::Actix)).await;
    lock.release().await;
    fleet.wait_for_run_start(&enqueuer.id).await;
    // Jobs of other resources in the same shard are not delayed by the backlog.
    let other_resources: Vec<_> =
        shard_resources(enqueuer.shard).filter(|name| name != CROWDED_RESOURCE).take(20).collect();
    enqueuer.enqueue_all(&fleet, other_resources.iter().map(String::as_str)).await;
    let runs_before = count_runs(&fleet, |resource| resource == CROWDED_RESOURCE).await;
    let started = Instant::now();
    while count_runs(&fleet, |resource| resource != CROWDED_RESOURCE).await < other_resources.len()
    {
        assert!(started.elapsed() < 20 * SECOND, "others wait behind the crowd");
        tokio::time::sleep(SECOND / 50).await;
    }
    let crowded_runs = crowded_runs_before_last_other(&fleet).saturating_sub(runs_before);
    println!("figure: of the crowd before 20 others {crowded_runs} runs");
    assert!(
        crowded_runs < 5_000,
        "{crowded_runs} of the crowd have run before {} others",
        other_resources.len()
    );
    while count_runs(&fleet, |resource| resource == CROWDED_RESOURCE).await < 200 {
        assert!(started.elapsed() < 20 * SECOND, "the crowd does not move");
        tokio::time::sleep(SECOND / 50).await;
    }
    slowlog.assert_no_long_scripts(&fleet, &["enqueue_jobs", "read_job", "cancel_job"]).await;
    assert_serial_runs(&fleet);
    fleet.close_unchecked();
}

/// Returns the number of resources that are due at once.
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
    let enqueuer = BulkEnqueuer::capture_call(&fleet, web, CROWDED_RESOURCE).await;
    let mut names = (10_000_000..).map(|n: u32| n.to_string());
    let other_shard_resource =
        names.find(|name| resource_shard(name) != enqueuer.shard).expect("a shard");
    let other_enqueuer = BulkEnqueuer::capture_call(&fleet, web, &other_shard_resource).await;
    let due: Vec<_> = shard_resources(enqueuer.shard)
        .filter(|name| name != CROWDED_RESOURCE)
        .take(due_resource_count())
        .collect();
    let (started, due) = (Instant::now(), due.iter().map(String::as_str).collect::<Vec<_>>());
    let [resource_count, jobs_per_resource] = MULTI_JOB_RESOURCES;
    enqueuer
        .enqueue_all(
            &fleet,
            due[..resource_count].iter().copied().cycle().take(resource_count * jobs_per_resource),
        )
        .await;
    enqueuer.enqueue_all(&fleet, due[resource_count..].iter().copied()).await;
    println!("{} due at once were stored in {:?}", due.len(), started.elapsed());
    let slowlog = SlowlogMonitor::start(&fleet).await;
    let _worker = fleet.start_node(NodeSetup::new(WebFramework::Axum)).await;
    wait_for_runs(&fleet, CHECKED_RUNS / 2).await;
    // Jobs of another shard that become due last.
    let last_resources: Vec<_> = shard_resources(other_enqueuer.shard)
        .filter(|name| *name != other_shard_resource)
        .take(20)
        .collect();
    other_enqueuer.enqueue_all(&fleet, last_resources.iter().map(String::as_str)).await;
    let runs_before = fleet.runs().len();
    wait_for_runs(&fleet, CHECKED_RUNS).await;
    slowlog.assert_no_long_scripts(&fleet, &["claim_settle_batch"]).await;
    assert_due_order(&fleet, &due).await;
    while count_runs(&fleet, |resource| last_resources.iter().any(|name| name == resource)).await
        < last_resources.len()
    {
        let other_runs = fleet.runs().len() - runs_before;
        assert!(
            other_runs < 2 * MAX_PREFETCHED,
            "{other_runs} have run before 20 of another shard"
        );
        tokio::time::sleep(SECOND / 50).await;
    }
    println!("figure: run before 20 of another shard {} others", fleet.runs().len() - runs_before);
    assert_serial_runs(&fleet);
    fleet.close_unchecked();
}

/// Checks the completed runs while most jobs still wait: each job ran once, and the runs of one
/// resource follow the order of acceptance, one after the other, with increasing fences.
fn assert_serial_runs(fleet: &JobFleet) {
    let mut last_runs = HashMap::<String, (u64, u64, Option<u64>)>::new();
    for run in fleet.runs() {
        let job = run.job_id.as_deref().expect("all are deferred");
        // Jobs that a node enqueued itself, before the copied ones, have random ids.
        let number = u64::from_str_radix(job[2..].trim_start_matches('0'), 16);
        let position =
            if job[2..].starts_with("0000000000000000") { number.unwrap_or(0) + 1 } else { 0 };
        assert_eq!(run.attempt, 1, "{run:?}");
        let ended = run.end.as_ref().map(|end| end.ended_at);
        let last_position = last_runs.insert(run.resource.clone(), (position, run.fence, ended));
        if let Some((last_position, fence, end)) = last_position {
            assert!(
                last_position < position || position == 0 && last_position == 0,
                "{run:?} comes after number {last_position}"
            );
            assert!(fence < run.fence, "{run:?} comes after fence {fence}");
            assert!(end.is_some_and(|end| end <= run.started_at), "{run:?} began before {end:?}");
        }
    }
}

async fn wait_for_runs(fleet: &JobFleet, count: usize) {
    let started = Instant::now();
    while fleet.runs().len() < count {
        assert!(started.elapsed() < 60 * SECOND, "{} have run", fleet.runs().len());
        tokio::time::sleep(SECOND / 10).await;
    }
}

/// Resources run in due order, except for prefetched ones. A resource with further jobs returns by
/// a wake-up and may precede others, but due polls continue in between.
async fn assert_due_order(fleet: &JobFleet, due: &[&str]) {
    let position: HashMap<_, _> =
        due.iter().enumerate().map(|(due_position, name)| (*name, due_position)).collect();
    let mut runs_by_position = BTreeMap::<usize, usize>::new();
    for run in fleet.runs() {
        if let Some(due_position) = position.get(&*run.resource) {
            *runs_by_position.entry(*due_position).or_default() += 1;
        }
    }
    let (served_count, last_position) =
        (runs_by_position.len(), runs_by_position.keys().next_back().copied().unwrap_or(0));
    let single_job_runs = runs_by_position.range(MULTI_JOB_RESOURCES[0]..).count();
    let multi_job_runs: Vec<_> =
        runs_by_position.range(..MULTI_JOB_RESOURCES[0]).map(|(_, times)| *times).collect();
    println!(
        "{single_job_runs} others have run, the {last_position}th the last of them; of the greedy: {multi_job_runs:?}"
    );
    assert!(
        last_position < served_count + MAX_PREFETCHED,
        "the {last_position}th has run, and of those before it {served_count}"
    );
    assert!(single_job_runs >= CHECKED_RUNS / 20, "{single_job_runs} others have run");
    let (min_runs, max_runs) = (multi_job_runs.iter().min(), multi_job_runs.iter().max());
    assert!(
        multi_job_runs.len() == MULTI_JOB_RESOURCES[0]
            && min_runs.zip(max_runs).is_some_and(|(a, b)| 4 * a >= *b),
        "{multi_job_runs:?}"
    );
}
