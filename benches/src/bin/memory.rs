//! Process whose memory is measured. `lockgate-benches` starts it.
//!
//! Usage: `lockgate-benches-memory PORT LOCKS WAITERS`. It uses lockgate in several steps. After
//! each step it prints the number of allocated bytes and waits for a line on stdin.

use std::{
    alloc::System,
    env,
    error::Error,
    io::{self, BufRead as _, Write as _},
    process,
    time::Duration,
};

use lockgate::{LockGuard, Store};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::{task::JoinSet, time::Instant};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

type MemoryBenchResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const MAX_WAIT: Duration = Duration::from_secs(60);

/// Longer than the background work after the last call.
const SETTLE_TIME: Duration = Duration::from_millis(500);

#[tokio::main(worker_threads = 2)]
async fn main() -> MemoryBenchResult<()> {
    let numbers = env::args().skip(1).map(|arg| arg.parse()).collect::<Result<Vec<u32>, _>>()?;
    let &[port, locks, waiters] = numbers.as_slice() else {
        return Err("usage: lockgate-benches-memory PORT LOCKS WAITERS".into());
    };
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    store.ping().await?;
    // Warm-up: tables grow to a size that they keep.
    drop(acquire_locks(&store, locks).await?);
    run_load(&store).await?;
    start_waiting_tasks(&store, waiters).await?.serve_all().await?;
    report_allocated_bytes().await?;

    let held = acquire_locks(&store, locks).await?;
    report_allocated_bytes().await?;
    drop(held);
    report_allocated_bytes().await?;
    let waiting = start_waiting_tasks(&store, waiters).await?;
    report_allocated_bytes().await?;
    waiting.serve_all().await?;
    report_allocated_bytes().await?;
    run_load(&store).await?;
    report_allocated_bytes().await?;
    process::exit(0)
}

/// Prints the number of allocated bytes after `SETTLE_TIME` and waits for a line on stdin. Exits
/// when stdin closes.
async fn report_allocated_bytes() -> MemoryBenchResult<()> {
    tokio::time::sleep(SETTLE_TIME).await;
    let stats = ALLOCATOR.stats();
    println!("{}", stats.bytes_allocated - stats.bytes_deallocated);
    io::stdout().flush()?;
    let read = tokio::task::spawn_blocking(|| io::stdin().lock().read_line(&mut String::new()));
    if read.await?? == 0 {
        process::exit(0);
    }
    Ok(())
}

async fn acquire_locks(store: &Store, locks: u32) -> MemoryBenchResult<Vec<LockGuard>> {
    let mut guards = Vec::new();
    for number in 0..locks {
        guards.push(store.lock(format!("held:{number}")).acquire().await?);
    }
    Ok(guards)
}

/// Waiters for one lock, and its holder.
struct WaitingTasks {
    holder: LockGuard,
    waiters: JoinSet<MemoryBenchResult<()>>,
}

async fn start_waiting_tasks(store: &Store, waiter_count: u32) -> MemoryBenchResult<WaitingTasks> {
    let holder = store.lock("hot").acquire().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..waiter_count {
        waiters.spawn(acquire_and_release(store.clone(), "hot".to_owned()));
    }
    Ok(WaitingTasks { holder, waiters })
}

impl WaitingTasks {
    /// Releases the lock and waits until each waiter has acquired and released it.
    async fn serve_all(self) -> MemoryBenchResult<()> {
        self.holder.release().await;
        let results: MemoryBenchResult<Vec<()>> =
            self.waiters.join_all().await.into_iter().collect();
        results.map(drop)
    }
}

async fn acquire_and_release(store: Store, key: String) -> MemoryBenchResult<()> {
    store.lock(key).wait(MAX_WAIT).acquire().await?.release().await;
    Ok(())
}

/// Runs 2 s of load: half of the tasks use one hot key, the others keys of their own.
async fn run_load(store: &Store) -> MemoryBenchResult<()> {
    let end = Instant::now() + Duration::from_secs(2);
    let mut tasks = JoinSet::new();
    for task in 0..128 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut key_number = 0_u32;
            while Instant::now() < end {
                key_number = (key_number + 1) % 1000;
                let key = if task % 2 == 0 { "hot".into() } else { format!("{task}-{key_number}") };
                acquire_and_release(store.clone(), key).await?;
            }
            Ok(())
        });
    }
    let results: MemoryBenchResult<Vec<()>> = tasks.join_all().await.into_iter().collect();
    results.map(drop)
}
