//! N1 and N2: what is left when all is quiet, and what it has cost.

use std::time::Duration;

use lockgate::testing::history::{
    Check, Violation,
    rest::{self, Rest},
};

use super::crew::Crew;

/// Until the leases of the dead are over, and a worker has given back what was dropped.
const REST: Duration = Duration::from_secs(15);

/// How long nothing may happen.
const QUIET: Duration = Duration::from_millis(400);

/// Calls per acquisition: one that takes it and one that gives it back, and as many again for those who
/// stand in line, are refused or give up.
const CEILING: u64 = 4;

/// What is wrong once all workers have been told to stop.
pub(super) async fn nothing_is_left(crew: &mut Crew) -> Vec<Violation> {
    let mut wrong = Vec::new();
    for who in 0..crew.size() {
        let says = tokio::time::timeout(REST, crew.says(who)).await;
        if !matches!(&says, Ok(Some(said)) if said == "quiet true") {
            let told = format!("process {who} does not come to rest: {says:?}");
            wrong.push(Violation { check: Check::N1, told });
        }
    }
    if !wrong.is_empty() {
        return wrong;
    }
    let until = tokio::time::Instant::now() + REST;
    loop {
        wrong = look(crew).await.check();
        if wrong.is_empty() || tokio::time::Instant::now() > until {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Err(calls) = falls_silent(crew).await {
        let told = format!("calls while nobody does anything:{calls}");
        wrong.push(Violation { check: Check::N1, told });
    }
    wrong
}

async fn look(crew: &Crew) -> Rest {
    let subscribers: String = crew.ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    Rest {
        keys: crew.keys().await,
        only_locks: true,
        subscriptions: u64::try_from(subscribers.lines().count()).unwrap_or(u64::MAX),
        processes: crew.size(),
        calls: 0,
    }
}

/// A place whose waiter has just left is given back a moment after the shutdown that did not wait for
/// it, and looked for again until its lease is over. But that comes to an end.
async fn falls_silent(crew: &Crew) -> Result<(), String> {
    crew.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
    for _ in 0..8 {
        let before = calls(crew).await;
        tokio::time::sleep(QUIET).await;
        if calls(crew).await == before {
            return Ok(());
        }
    }
    Err(latest(crew).await)
}

/// The latest script calls, a line each, with when they were made and how.
async fn latest(crew: &Crew) -> String {
    let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        crew.ask(&["SLOWLOG", "GET", "64"]).await;
    let scripts = entries.iter().filter(|entry| entry.3[0].starts_with("EVAL"));
    scripts.map(|(_, at, _, words, ..)| format!("\n  {at} {}", words.join(" "))).collect()
}

/// Calls per acquisition, told; and what is wrong with that.
pub(super) async fn cost(crew: &Crew, grants: usize) -> (String, Option<Violation>) {
    let calls = calls(crew).await;
    let grants = u64::try_from(grants).unwrap_or(0);
    (format!("{calls} calls for {grants} acquisitions"), rest::cost(calls, grants, CEILING))
}

/// Of scripts, since the beginning: the server's own count begins again with each restart.
pub(super) async fn calls(crew: &Crew) -> u64 {
    let text: String = crew.ask(&["INFO", "commandstats"]).await;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    let since = of("cmdstat_evalsha:calls=").unwrap_or(0) + of("cmdstat_eval:calls=").unwrap_or(0);
    crew.calls_before + since
}
