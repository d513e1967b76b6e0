//! Steps that change nothing: of the small worlds' states, those that the model says leave a state as it is.
//!
//! Such a step leads nowhere, so it is on no way through the graph that is gone on both stores. Here each state is reached once
//! on both, by one path, and every such step is made there, one after the other: it has the same reply, and leaves all that
//! is stored on the server as it was. Times of the server may have moved with real time, where a step sets one anew.

use std::time::Duration;

use super::{
    Move, World, budget,
    graph::map,
    small::{MOST, larger, worlds},
};
use crate::store::{
    backend::{JobView, ShardStats},
    tests::{
        alike::are_alike,
        both::{Both, RUNS, SLOW, in_time},
        rig::Rig,
    },
};

/// What the embedded store knows of a world. More than a picture: of two states with the same one, the fence of one may be
/// larger, or its watch end later.
#[derive(Debug, PartialEq)]
struct Exact {
    picture: String,
    marks: Vec<u64>,
    jobs: Vec<Option<JobView>>,
    tally: ShardStats,
}

async fn exact(both: &Both) -> Exact {
    let Both { memory, clients, .. } = both;
    let (store, key) = (memory.embedded(), &clients.keys[0]);
    let mut jobs = Vec::new();
    for id in &clients.jobs {
        jobs.push(memory.backend().job_view(id.clone()).await.unwrap());
    }
    Exact {
        picture: store.model_snapshot(key, &clients.told(), clients),
        marks: store.unmodeled_state(key),
        jobs,
        tally: memory.tally(key.shard()).await,
    }
}

/// A line of what is stored, without the moments in it, and these: numbers of so many digits are milliseconds since 1970.
fn apart(line: &str) -> (String, Vec<Duration>) {
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

fn is_same(before: &[String], after: &[String]) -> bool {
    let same = |(one, other): (&String, &String)| {
        let ((one, from), (other, to)) = (apart(one), apart(other));
        let near = |(from, to): (&Duration, &Duration)| from.abs_diff(*to) <= SLOW;
        one == other && from.len() == to.len() && from.iter().zip(&to).all(near)
    };
    before.len() == after.len() && before.iter().zip(after).all(same)
}

/// How many steps were made, and of how many the server's state was compared; `None` if it took too long.
async fn stands_still(
    both: &mut Both,
    world: &World,
    (path, idle): (&[Move], &[Move]),
) -> Option<(usize, usize)> {
    for made in world.begins.iter().chain(path) {
        both.step(made).await;
    }
    let (mut made, mut compared) = (0, 0);
    let (mut before, mut shown) = (exact(both).await, both.redis.server().shown().await);
    for step in idle {
        let Some((call, replies)) = both.make(step).await else { continue };
        let (after, shown_after) = (exact(both).await, both.redis.server().shown().await);
        if both.is_late() {
            return None;
        }
        let context = || format!("{call:?} after {path:#?}");
        are_alike(replies, context);
        made += 1;
        if before == after {
            assert!(is_same(&shown, &shown_after), "{shown:#?}\n{shown_after:#?}\n{}", context());
            compared += 1;
        }
        (before, shown) = (after, shown_after);
    }
    Some((made, compared))
}

/// Of each world about so many states, short ways and long ones: `EXPLORE_PATHS` says how many.
fn stand_still(worlds: &[World], usual: usize) {
    let named = std::env::var("EXPLORE_PATHS").ok().and_then(|text| text.parse().ok());
    let most: usize = named.unwrap_or(usual);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Keeps the server up between two cases.
    let _server = runtime.block_on(Rig::redis());
    for world in worlds {
        let graph = runtime.block_on(map(world, budget(MOST)));
        let states = graph.idle();
        let step = (states.len() / most).max(1);
        let (mut made, mut compared, mut ways) = (0, 0, 0);
        for (path, idle) in states.iter().step_by(step) {
            let told = runtime.block_on(in_time(RUNS, true, &world.modes, async |both| {
                let stood = stands_still(both, world, (path, idle)).await;
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
fn what_changes_nothing_in_small_worlds_changes_nothing_on_the_server() {
    stand_still(&worlds(), MOST);
}

#[test]
fn what_changes_nothing_in_a_larger_world_changes_nothing_on_the_server() {
    stand_still(&[larger()], MOST);
}

#[test]
fn a_change_is_seen() {
    let lines = |text: &str| vec!["{1}:f stays fence=1795363477767486".to_owned(), text.to_owned()];
    let one = lines("{1}:h:7 ends 1795363477767 hab12=1795363477800");
    assert!(is_same(&one, &lines("{1}:h:7 ends 1795363477790 hab12=1795363477790")));
    assert!(!is_same(&one, &lines("{1}:h:7 ends 1795363478790 hab12=1795363477800")), "time");
    assert!(!is_same(&one, &lines("{1}:h:7 ends 1795363477767 hab13=1795363477800")), "who");
    assert!(!is_same(&one, &lines("{1}:h:7 stays hab12=1795363477800")), "no end");
    assert!(!is_same(&one, &one[1..]), "a key");
    let fence = vec!["{1}:f stays fence=1795363477767487".to_owned(), one[1].clone()];
    assert!(!is_same(&one, &fence));
}
