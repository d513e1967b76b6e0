//! The snapshot that every open page shows: what the store and all processes do now.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{durations::saturating_millis, error::Error, store::Store};

/// Takes a snapshot. If the store does not answer, it says so and is empty otherwise.
pub(super) async fn take_snapshot(store: &Store) -> Value {
    let now_ms =
        saturating_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    match read_store(store).await {
        Ok(mut snapshot) => {
            snapshot["now_ms"] = now_ms.into();
            snapshot["store"] = json!({ "available": true });
            snapshot
        }
        Err(error) => json!({
            "now_ms": now_ms,
            "store": { "available": false, "error": error.to_string() },
        }),
    }
}

async fn read_store(store: &Store) -> Result<Value, Error> {
    let jobs = store.deferred_jobs();
    let (stats, paused, queues) = tokio::try_join!(jobs.stats(), jobs.is_paused(), store.queues())?;
    let mut stats = serde_json::to_value(stats).unwrap_or_default();
    stats["paused"] = paused.into();
    Ok(json!({ "jobs": stats, "queues": queues }))
}
