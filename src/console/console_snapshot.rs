//! The snapshot that every open page shows: what the store and all processes do now.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::console_queries::with_member;
use crate::{
    durations::saturating_millis,
    error::Error,
    rate_limit::FleetPolicy,
    store::{FleetReport, HoldReport, ProcessReport, Store},
};

/// Most holds of a snapshot: the longest ones of all processes.
const MAX_HOLDS: usize = 100;

/// Takes a snapshot. If the store does not answer, it says so and is empty otherwise.
pub(super) async fn take_snapshot(store: &Store) -> Value {
    let now_ms =
        saturating_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    match read_store(store).await {
        Ok(snapshot) => with_member(
            with_member(snapshot, "now_ms", now_ms),
            "store",
            json!({ "available": true }),
        ),
        Err(error) => json!({
            "now_ms": now_ms,
            "store": { "available": false, "error": error.to_string() },
        }),
    }
}

async fn read_store(store: &Store) -> Result<Value, Error> {
    let jobs = store.deferred_jobs();
    let (stats, paused, workers, queues, changed, mut fleet) = tokio::try_join!(
        jobs.stats(),
        jobs.is_paused(),
        store.backend().count_live_workers(),
        store.queues(),
        store.changed_policies(),
        store.fleet()
    )?;
    let stats = serde_json::to_value(stats).unwrap_or_default();
    let stats = with_member(with_member(stats, "paused", paused), "workers", workers);
    let policies = FleetPolicy::merge(&fleet, &changed);
    // The page shows them merged; with all processes they would be most of the snapshot.
    fleet.processes.iter_mut().for_each(|process| process.policies.clear());
    Ok(json!({
        "jobs": stats,
        "queues": queues,
        "policies": policies,
        "holds": longest_holds(&fleet),
        "waits": fleet.longest_waits(),
        "stats": sum_of_stats(&fleet),
        "processes": fleet.processes,
        "silent": fleet.silent,
        "truncated": fleet.truncated,
    }))
}

/// Returns the longest holds of all processes, each with its process.
fn longest_holds(fleet: &FleetReport) -> Vec<Value> {
    let holds = fleet
        .processes
        .iter()
        .flat_map(|process| process.holds.iter().map(move |hold| (hold.held_ms, process, hold)));
    let mut holds: Vec<_> = holds.collect();
    holds.sort_unstable_by_key(|(held_ms, ..)| std::cmp::Reverse(*held_ms));
    holds.truncate(MAX_HOLDS);
    let to_row = |(_, process, hold)| {
        let row = serde_json::to_value::<&HoldReport>(hold).unwrap_or_default();
        let process: &ProcessReport = process;
        with_member(with_member(row, "host", process.host.clone()), "pid", process.pid)
    };
    holds.into_iter().map(to_row).collect()
}

/// Returns the sums of the counts of all processes.
fn sum_of_stats(fleet: &FleetReport) -> Value {
    let mut sums = serde_json::Map::new();
    for process in &fleet.processes {
        let stats = serde_json::to_value(process.stats).unwrap_or_default();
        for (name, count) in stats.as_object().into_iter().flatten() {
            let sum = sums.get(name).and_then(Value::as_u64).unwrap_or_default();
            sums.insert(name.clone(), (sum + count.as_u64().unwrap_or_default()).into());
        }
    }
    Value::Object(sums)
}
