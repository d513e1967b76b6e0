//! Process that holds many locks without using them.

use std::{process, time::Duration};

use lockgate::{LockGuard, Store};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    bench_result::BenchResult,
    lock_contender::connect_store,
    lock_worker::worker_runtime,
    runner_commands::{RunnerCommands, send_line},
};

const MAX_RUN_TIME: Duration = Duration::from_secs(300);

/// Number of acquires in flight.
const CONCURRENT_ACQUIRES: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HolderPlan {
    pub(crate) redis_port: u16,
    pub(crate) locks: usize,
    pub(crate) lease: Duration,
}

/// Acquires all locks, reports that it is ready, and on the next command reports how many it still
/// holds.
pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: HolderPlan = serde_json::from_str(plan)?;
    let commands = RunnerCommands::listen("lock holder", MAX_RUN_TIME);
    let runtime = worker_runtime()?;
    let guards = runtime.block_on(acquire_all(&plan))?;
    commands.await_start()?;
    let held = guards.iter().filter(|guard| !guard.remaining().is_zero()).count();
    send_line(&held.to_string())?;
    process::exit(0)
}

async fn acquire_all(plan: &HolderPlan) -> BenchResult<Vec<LockGuard>> {
    let store = connect_store(plan.redis_port).await?;
    let mut guards = Vec::with_capacity(plan.locks);
    let mut tasks = JoinSet::new();
    for number in 0..plan.locks {
        if tasks.len() == CONCURRENT_ACQUIRES
            && let Some(guard) = tasks.join_next().await
        {
            guards.push(guard??);
        }
        tasks.spawn(acquire_one(store.clone(), number, plan.lease));
    }
    while let Some(guard) = tasks.join_next().await {
        guards.push(guard??);
    }
    Ok(guards)
}

async fn acquire_one(store: Store, number: usize, lease: Duration) -> BenchResult<LockGuard> {
    Ok(store.lock(format!("held:{number}")).lease(lease).acquire().await?)
}
