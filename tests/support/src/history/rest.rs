//! N1 and N2: what is left when all is quiet, and what it has cost.

use std::time::Duration;

use lockgate_history::{
    Check, Violation,
    rest::{self, Rest},
};

use super::crew::{Crew, NAMESPACE};
use crate::kept;

/// Until the leases of the dead are over, and a worker has given back what was dropped.
const REST: Duration = Duration::from_secs(15);

/// How long nothing may happen.
const QUIET: Duration = Duration::from_millis(400);

/// Sockets of a process that has the usual number of them, and one for messages.
const SOCKETS: u64 = 3;

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
    let mut connection = crew.connection().await;
    let (clients, subscriptions) = kept::clients(&mut connection).await;
    Rest {
        keys: kept::kept(&mut connection, NAMESPACE).await,
        only_locks: true,
        subscriptions,
        channels: kept::channels(&mut connection, NAMESPACE).await,
        clients,
        sockets: Some(SOCKETS),
        processes: crew.size(),
        ..Rest::default()
    }
}

/// A place whose waiter has just left is given back a moment after the shutdown that did not wait for
/// it, and looked for again until its lease is over. But that comes to an end.
async fn falls_silent(crew: &Crew) -> Result<(), String> {
    crew.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await;
    for _ in 0..8 {
        let before = crew.calls();
        tokio::time::sleep(QUIET).await;
        if crew.calls() == before {
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
pub(super) fn cost(crew: &Crew, grants: usize) -> (String, Option<Violation>) {
    let calls = crew.calls();
    let grants = u64::try_from(grants).unwrap_or(0);
    (format!("{calls} calls for {grants} acquisitions"), rest::cost(calls, grants, CEILING))
}
