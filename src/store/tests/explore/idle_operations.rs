//! Operations that change nothing: for each state of the small scenarios, those that leave it
//! unchanged according to the model.
//!
//! Such an operation is on no path of the state graph, so the replay of all paths does not cover
//! it. Here each state is reached once on both stores, and all its idle operations run there in
//! succession. They must have the same replies and leave the server's data unchanged. Times may
//! have moved with real time where an operation sets one anew.

use std::time::Duration;

use super::{
    ClientOperation, ModelScenario,
    small_scenarios::{MAX_STATES, larger_scenario, small_scenarios},
    state_graph::explore_unchecked,
    state_limit,
};
use crate::store::{
    backend::{JobView, ShardStats},
    tests::{
        backend_equivalence::assert_same_replies,
        store_harness::StoreHarness,
        store_pair::{MAX_REAL_TIME, MAX_RUNS, StorePair, retry_until_in_time},
    },
};

/// State of the embedded store in full. A snapshot is coarser: states with the same one may differ
/// in fences or in the end of a watch.
#[derive(Debug, PartialEq)]
struct ExactState {
    snapshot: String,
    unmodeled_state: Vec<u64>,
    job_views: Vec<Option<JobView>>,
    shard_stats: ShardStats,
}

async fn read_exact_state(stores: &StorePair) -> ExactState {
    let StorePair { memory, clients, .. } = stores;
    let (store, key) = (memory.memory_backend(), &clients.keys[0]);
    let mut job_views = Vec::new();
    for id in &clients.jobs {
        job_views.push(memory.backend().job_view(id.clone()).await.unwrap());
    }
    ExactState {
        snapshot: store.model_snapshot(key, &clients.resume_sequences(), clients),
        unmodeled_state: store.unmodeled_state(key),
        job_views,
        shard_stats: memory.shard_stats(key.shard()).await,
    }
}

/// Splits a line of the dump into its text without timestamps, and the timestamps. A number of
/// `DIGITS` digits is in ms since 1970.
fn split_timestamps(line: &str) -> (String, Vec<Duration>) {
    const DIGITS: usize = 13;
    let (mut text, mut times, mut rest) = (String::new(), Vec::new(), line);
    while let Some(index) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, tail) = rest.split_at(index);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, after) = tail.split_at(digits);
        text += before;
        match number.parse() {
            Ok(ms) if digits == DIGITS => {
                text.push('#');
                times.push(Duration::from_millis(ms));
            }
            _ => text += number,
        }
        rest = after;
    }
    (text + rest, times)
}

fn is_server_unchanged(before: &[String], after: &[String]) -> bool {
    let are_lines_equal = |(one, other): (&String, &String)| {
        let ((one, from), (other, to)) = (split_timestamps(one), split_timestamps(other));
        let are_close = |(from, to): (&Duration, &Duration)| from.abs_diff(*to) <= MAX_REAL_TIME;
        one == other && from.len() == to.len() && from.iter().zip(&to).all(are_close)
    };
    before.len() == after.len() && before.iter().zip(after).all(are_lines_equal)
}

/// Returns the number of operations, and the number of those after which the server's state was
/// compared; `None` if it took too long.
async fn check_idle_operations(
    stores: &mut StorePair,
    scenario: &ModelScenario,
    (path, idle): (&[ClientOperation], &[ClientOperation]),
) -> Option<(usize, usize)> {
    for operation in scenario.setup.iter().chain(path) {
        stores.apply(operation).await;
    }
    let (mut applied, mut compared) = (0, 0);
    let (mut before, mut dump) =
        (read_exact_state(stores).await, stores.redis.server().dump_keys().await);
    for operation in idle {
        let Some((call, replies)) = stores.apply_without_delay(operation).await else { continue };
        let (after, dump_after) =
            (read_exact_state(stores).await, stores.redis.server().dump_keys().await);
        if stores.is_too_slow() {
            return None;
        }
        let context = || format!("{call:?} after {path:#?}");
        assert_same_replies(replies, context);
        applied += 1;
        if before == after {
            assert!(
                is_server_unchanged(&dump, &dump_after),
                "{dump:#?}\n{dump_after:#?}\n{}",
                context()
            );
            compared += 1;
        }
        (before, dump) = (after, dump_after);
    }
    Some((applied, compared))
}

/// Checks about `EXPLORE_PATHS` states of each scenario, with short and long paths.
fn check_idle_operations_of_scenarios(scenarios: &[ModelScenario], default_count: usize) {
    let configured = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    let state_count: usize = configured.unwrap_or(default_count);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server running between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    for scenario in scenarios {
        let graph = runtime.block_on(explore_unchecked(scenario, state_limit(MAX_STATES)));
        let states = graph.idle_paths();
        let step = (states.len() / state_count).max(1);
        let (mut applied, mut compared, mut run_count) = (0, 0, 0);
        for (path, idle) in states.iter().step_by(step) {
            let is_done = runtime.block_on(retry_until_in_time(
                MAX_RUNS,
                true,
                &scenario.modes,
                async |stores| {
                    let counts = check_idle_operations(stores, scenario, (path, idle)).await;
                    let (step_applied, step_compared) = counts.unwrap_or_default();
                    (applied, compared) = (applied + step_applied, compared + step_compared);
                    counts.is_some()
                },
            ));
            run_count += usize::from(is_done);
        }
        println!(
            "{}: {run_count} of {} states, {applied} steps, after {compared} the server was compared",
            scenario.name,
            states.len()
        );
        assert!(compared > 0, "{}: nothing was compared", scenario.name);
    }
}

#[test]
fn idle_operations_of_small_scenarios_change_no_redis_key() {
    check_idle_operations_of_scenarios(&small_scenarios(), MAX_STATES);
}

#[test]
fn idle_operations_of_larger_scenario_change_no_redis_key() {
    check_idle_operations_of_scenarios(&[larger_scenario()], MAX_STATES);
}

#[test]
fn changed_server_rows_are_detected() {
    let rows = |text: &str| vec!["{1}:f stays fence=1795363477767486".to_owned(), text.to_owned()];
    let one = rows("{1}:h:7 ends 1795363477767 hab12=1795363477800");
    assert!(is_server_unchanged(&one, &rows("{1}:h:7 ends 1795363477790 hab12=1795363477790")));
    assert!(
        !is_server_unchanged(&one, &rows("{1}:h:7 ends 1795363478790 hab12=1795363477800")),
        "time"
    );
    assert!(
        !is_server_unchanged(&one, &rows("{1}:h:7 ends 1795363477767 hab13=1795363477800")),
        "who"
    );
    assert!(!is_server_unchanged(&one, &rows("{1}:h:7 stays hab12=1795363477800")), "no end");
    assert!(!is_server_unchanged(&one, &one[1..]), "a key");
    let fence = vec!["{1}:f stays fence=1795363477767487".to_owned(), one[1].clone()];
    assert!(!is_server_unchanged(&one, &fence));
}
