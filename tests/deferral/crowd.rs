//! Row 14: a hundred thousand on one resource, and a hundred thousand resources due at once.

#[path = "crowd/load.rs"]
mod load;
#[path = "crowd/watch.rs"]
mod watch;

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use lockgate_tests::{
    Framework,
    ledger::{Fleet, Setup},
};

use self::{
    load::{Crowd, names, shard_of},
    watch::Watch,
};
use super::{SECOND, fleet};

/// The resource that has many requests.
const FULL: &str = "10000007";

/// Resources that are due at once: a million take ten minutes on a machine of two cores, and are run by
/// `LOCKGATE_DUE=1000000`.
const DUE: usize = 100_000;

/// Of those, the first ones have so many requests each, one behind the other: more than are looked at.
const GREEDY: [usize; 2] = [100, 100];

/// How many are looked at, of all that run.
const LOOKED_AT: usize = 1_500;

/// What a worker knows ahead, of whatever shard, and a look's names.
const AHEAD: usize = 1_100;

async fn runs(fleet: &Fleet, of: impl Fn(&str) -> bool) -> usize {
    fleet.runs().iter().filter(|run| of(&run.resource)).count()
}

/// Of the crowd, before the last of the others.
fn runs_before_the_others(fleet: &Fleet) -> usize {
    let runs = fleet.runs();
    let last = runs.iter().rposition(|run| run.resource != FULL).unwrap_or(0);
    runs[..last].iter().filter(|run| run.resource == FULL).count()
}

#[tokio::test]
async fn a_hundred_thousand_on_one_resource_slow_nobody_down() {
    let mut fleet = fleet().await;
    let web = fleet.join(Setup::new(Framework::Axum).web_only()).await;
    let crowd = Crowd::of(&fleet, web, FULL).await;
    crowd.store(&fleet, std::iter::repeat_n(FULL, 100_000)).await;
    let watch = Watch::on(&fleet).await;
    let lock = fleet.hold(FULL).await;
    // The last one of all: neither a look at it nor its end goes past all those before it.
    for _ in 0..12 {
        let last = fleet.later(web, FULL).accepted().await;
        assert_eq!(fleet.see(web, &last).await.state, "queued");
        assert_eq!(fleet.cancel(web, &last).await, 204);
    }
    let _worker = fleet.join(Setup::new(Framework::Actix)).await;
    lock.release().await;
    fleet.started(&crowd.id).await;
    // Others of the same shard are not behind them.
    let others: Vec<_> = names(crowd.shard).filter(|name| name != FULL).take(20).collect();
    crowd.store(&fleet, others.iter().map(String::as_str)).await;
    let before = runs(&fleet, |resource| resource == FULL).await;
    let started = Instant::now();
    while runs(&fleet, |resource| resource != FULL).await < others.len() {
        assert!(started.elapsed() < 20 * SECOND, "others wait behind the crowd");
        tokio::time::sleep(SECOND / 50).await;
    }
    let meanwhile = runs_before_the_others(&fleet).saturating_sub(before);
    println!("figure: of the crowd before 20 others {meanwhile} runs");
    assert!(meanwhile < 5_000, "{meanwhile} of the crowd have run before {} others", others.len());
    while runs(&fleet, |resource| resource == FULL).await < 200 {
        assert!(started.elapsed() < 20 * SECOND, "the crowd does not move");
        tokio::time::sleep(SECOND / 50).await;
    }
    watch.none_was_long(&fleet, &["enqueue_batch", "read_job", "cancel_job"]).await;
    one_after_the_other(&fleet);
    fleet.leave();
}

/// How many are due at once.
fn due() -> usize {
    std::env::var("LOCKGATE_DUE").ok().and_then(|due| due.parse().ok()).unwrap_or(DUE)
}

#[tokio::test]
async fn a_hundred_thousand_due_at_once_are_taken_in_turn() {
    let mut fleet = fleet().await;
    let web = fleet.join(Setup::new(Framework::Actix).web_only()).await;
    let crowd = Crowd::of(&fleet, web, FULL).await;
    let mut all = (10_000_000..).map(|n: u32| n.to_string());
    let beside = all.find(|name| shard_of(name) != crowd.shard).expect("a shard");
    let other = Crowd::of(&fleet, web, &beside).await;
    let due: Vec<_> = names(crowd.shard).filter(|name| name != FULL).take(due()).collect();
    let (began, due) = (Instant::now(), due.iter().map(String::as_str).collect::<Vec<_>>());
    let [greedy, each] = GREEDY;
    crowd.store(&fleet, due[..greedy].iter().copied().cycle().take(greedy * each)).await;
    crowd.store(&fleet, due[greedy..].iter().copied()).await;
    println!("{} due at once were stored in {:?}", due.len(), began.elapsed());
    let watch = Watch::on(&fleet).await;
    let _worker = fleet.join(Setup::new(Framework::Axum)).await;
    have_run(&fleet, LOOKED_AT / 2).await;
    // A few of another shard come last of all.
    let last: Vec<_> = names(other.shard).filter(|name| *name != beside).take(20).collect();
    other.store(&fleet, last.iter().map(String::as_str)).await;
    let before = fleet.runs().len();
    have_run(&fleet, LOOKED_AT).await;
    watch.none_was_long(&fleet, &["run_batch"]).await;
    in_turn(&fleet, &due).await;
    while runs(&fleet, |resource| last.iter().any(|name| name == resource)).await < last.len() {
        let meanwhile = fleet.runs().len() - before;
        assert!(meanwhile < 2 * AHEAD, "{meanwhile} have run before 20 of another shard");
        tokio::time::sleep(SECOND / 50).await;
    }
    println!("figure: run before 20 of another shard {} others", fleet.runs().len() - before);
    one_after_the_other(&fleet);
    fleet.leave();
}

/// Nothing was done to anybody, and most of them wait still: of those that have run each has once, those of a resource
/// in the order in which they were stored, each with a larger fence, when the one before it had ended.
fn one_after_the_other(fleet: &Fleet) {
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

async fn have_run(fleet: &Fleet, many: usize) {
    let began = Instant::now();
    while fleet.runs().len() < many {
        assert!(began.elapsed() < 60 * SECOND, "{} have run", fleet.runs().len());
        tokio::time::sleep(SECOND / 10).await;
    }
}

/// Those that came due first have run first, but for what is known ahead. Those that have more behind them come again by
/// a message, and so before others, but they take turns with them: what is due is looked up all the while.
async fn in_turn(fleet: &Fleet, due: &[&str]) {
    let place: HashMap<_, _> = due.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let mut of_each = BTreeMap::<usize, usize>::new();
    for run in fleet.runs() {
        if let Some(at) = place.get(&*run.resource) {
            *of_each.entry(*at).or_default() += 1;
        }
    }
    let (served, last) = (of_each.len(), of_each.keys().next_back().copied().unwrap_or(0));
    let others = of_each.range(GREEDY[0]..).count();
    let runs: Vec<_> = of_each.range(..GREEDY[0]).map(|(_, times)| *times).collect();
    println!("{others} others have run, the {last}th the last of them; of the greedy: {runs:?}");
    assert!(last < served + AHEAD, "the {last}th has run, and of those before it {served}");
    assert!(others >= LOOKED_AT / 20, "{others} others have run");
    let (least, most) = (runs.iter().min(), runs.iter().max());
    assert!(
        runs.len() == GREEDY[0] && least.zip(most).is_some_and(|(a, b)| 4 * a >= *b),
        "{runs:?}"
    );
}
