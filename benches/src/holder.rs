//! A process that holds many locks, and does nothing with them.

use std::{process, time::Duration};

use lockgate::{LockGuard, Store};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    contestant::connect_store,
    lifeline::{Orders, say},
    outcome::Outcome,
    worker::runtime,
};

const AT_MOST: Duration = Duration::from_secs(300);

/// How many are acquired at once.
const AT_ONCE: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Of the Redis.
    pub(crate) port: u16,
    pub(crate) locks: usize,
    pub(crate) lease: Duration,
}

/// Acquires them all, is ready, and at any further word says how many it still holds.
pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    let orders = Orders::listen("a holder of locks", AT_MOST);
    let runtime = runtime()?;
    let guards = runtime.block_on(acquire(&plan))?;
    orders.start()?;
    let held = guards.iter().filter(|guard| !guard.remaining().is_zero()).count();
    say(&held.to_string())?;
    process::exit(0)
}

async fn acquire(plan: &Plan) -> Outcome<Vec<LockGuard>> {
    let store = connect_store(plan.port).await?;
    let mut guards = Vec::with_capacity(plan.locks);
    let mut tasks = JoinSet::new();
    for number in 0..plan.locks {
        if tasks.len() == AT_ONCE
            && let Some(guard) = tasks.join_next().await
        {
            guards.push(guard??);
        }
        tasks.spawn(one(store.clone(), number, plan.lease));
    }
    while let Some(guard) = tasks.join_next().await {
        guards.push(guard??);
    }
    Ok(guards)
}

async fn one(store: Store, number: usize, lease: Duration) -> Outcome<LockGuard> {
    Ok(store.lock(format!("held:{number}")).lease(lease).acquire().await?)
}
