//! Steps that change nothing: of the small worlds' states, those that the model says leave a state as it is.
//!
//! Such a step leads nowhere, so it is on no way through the graph that is gone on both stores. Here each state is reached once
//! on both, by one path, and every such step is made there, one after the other: it has the same reply, and leaves all that
//! is stored on the server as it was. Times of the server may have moved with real time, where a step sets one anew.

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

/// What the embedded store knows of a world. More than a picture: of two states with the same one, the fence of one may be
/// larger, or its watch end later.
#[derive(Debug, PartialEq)]
struct ExactState {
    snapshot: String,
    unmodeled_state: Vec<u64>,
    job_views: Vec<Option<JobView>>,
    shard_stats: ShardStats,
}

async fn read_exact_state(both: &StorePair) -> ExactState {
    let StorePair { memory, clients, .. } = both;
    let (store, key) = (memory.memory_backend(), &clients.keys[0]);
    let mut jobs = Vec::new();
    for id in &clients.jobs {
        jobs.push(memory.backend().job_view(id.clone()).await.unwrap());
    }
    ExactState {
        snapshot: store.model_snapshot(key, &clients.resume_sequences(), clients),
        unmodeled_state: store.unmodeled_state(key),
        job_views: jobs,
        shard_stats: memory.shard_stats(key.shard()).await,
    }
}

/// A line of what is stored, without the moments in it, and these: numbers of so many digits are milliseconds since 1970.
fn split_timestamps(line: &str) -> (String, Vec<Duration>) {
    const DIGITS: usize = 13;
    let (mut text, mut moments, mut rest) = (String::new(), Vec::new(), line);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let digits = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        let (number, after) = from.split_at(digits);
        text += before;
        match number.parse() {
            Ok(ms) if digits == DIGITS => {
                text.push('#');
                moments.push(Duration::from_millis(ms));
            }
            _ => text += number,
        }
        rest = after;
    }
    (text + rest, moments)
}

fn is_server_unchanged(before: &[String], after: &[String]) -> bool {
    let same = |(one, other): (&String, &String)| {
        let ((one, from), (other, to)) = (split_timestamps(one), split_timestamps(other));
        let near = |(from, to): (&Duration, &Duration)| from.abs_diff(*to) <= MAX_REAL_TIME;
        one == other && from.len() == to.len() && from.iter().zip(&to).all(near)
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// How many steps were made, and of how many the server's state was compared; `None` if it took too long.
async fn check_idle_operations(
    both: &mut StorePair,
    world: &ModelScenario,
    (path, idle): (&[ClientOperation], &[ClientOperation]),
) -> Option<(usize, usize)> {
    for made in world.setup.iter().chain(path) {
        both.apply(made).await;
    }
    let (mut made, mut compared) = (0, 0);
    let (mut before, mut shown) =
        (read_exact_state(both).await, both.redis.server().dump_keys().await);
    for step in idle {
        let Some((call, replies)) = both.apply_without_delay(step).await else { continue };
        let (after, shown_after) =
            (read_exact_state(both).await, both.redis.server().dump_keys().await);
        if both.is_too_slow() {
            return None;
        }
        let context = || format!("{call:?} after {path:#?}");
        assert_same_replies(replies, context);
        made += 1;
        if before == after {
            assert!(
                is_server_unchanged(&shown, &shown_after),
                "{shown:#?}\n{shown_after:#?}\n{}",
                context()
            );
            compared += 1;
        }
        (before, shown) = (after, shown_after);
    }
    Some((made, compared))
}

/// Of each world about so many states, short ways and long ones: `EXPLORE_PATHS` says how many.
fn check_idle_operations_of_scenarios(worlds: &[ModelScenario], usual: usize) {
    let named = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    let most: usize = named.unwrap_or(usual);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(StoreHarness::redis());
    for world in worlds {
        let graph = runtime.block_on(explore_unchecked(world, state_limit(MAX_STATES)));
        let states = graph.idle_paths();
        let step = (states.len() / most).max(1);
        let (mut made, mut compared, mut ways) = (0, 0, 0);
        for (path, idle) in states.iter().step_by(step) {
            let told =
                runtime.block_on(retry_until_in_time(MAX_RUNS, true, &world.modes, async |both| {
                    let stood = check_idle_operations(both, world, (path, idle)).await;
                    let (all, same) = stood.unwrap_or_default();
                    (made, compared) = (made + all, compared + same);
                    stood.is_some()
                }));
            ways += usize::from(told);
        }
        println!(
            "{}: {ways} of {} states, {made} steps, after {compared} the server was compared",
            world.name,
            states.len()
        );
        assert!(compared > 0, "{}: nothing was compared", world.name);
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
    let lines = |text: &str| vec!["{1}:f stays fence=1795363477767486".to_owned(), text.to_owned()];
    let one = lines("{1}:h:7 ends 1795363477767 hab12=1795363477800");
    assert!(is_server_unchanged(&one, &lines("{1}:h:7 ends 1795363477790 hab12=1795363477790")));
    assert!(
        !is_server_unchanged(&one, &lines("{1}:h:7 ends 1795363478790 hab12=1795363477800")),
        "time"
    );
    assert!(
        !is_server_unchanged(&one, &lines("{1}:h:7 ends 1795363477767 hab13=1795363477800")),
        "who"
    );
    assert!(!is_server_unchanged(&one, &lines("{1}:h:7 stays hab12=1795363477800")), "no end");
    assert!(!is_server_unchanged(&one, &one[1..]), "a key");
    let fence = vec!["{1}:f stays fence=1795363477767487".to_owned(), one[1].clone()];
    assert!(!is_server_unchanged(&one, &fence));
}
