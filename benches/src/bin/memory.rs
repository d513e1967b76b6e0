//! The process whose memory is measured: it does one thing after the other with lockgate, says after each
//! how many bytes it has allocated and not freed, and waits to be told to go on.
//!
//! Usage: `lockgate-benches-memory PORT LOCKS WAITERS`, started by `lockgate-benches`.

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

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const WAIT: Duration = Duration::from_secs(60);

/// Longer than what goes on in the background after the last call.
const SETTLE: Duration = Duration::from_millis(500);

#[tokio::main(worker_threads = 2)]
async fn main() -> Outcome<()> {
    let numbers = env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let &[port, locks, waiters] = numbers.as_slice() else {
        return Err("usage: lockgate-benches-memory PORT LOCKS WAITERS".into());
    };
    let store = Store::connect(&format!("redis://127.0.0.1:{port}/?ns=bench")).await?;
    store.ping().await?;
    // Once round everything first: tables grow to a size that they keep.
    drop(hold(&store, locks).await?);
    load(&store).await?;
    line(&store, waiters).await?.end().await?;
    tell().await?;

    let held = hold(&store, locks).await?;
    tell().await?;
    drop(held);
    tell().await?;
    let waiting = line(&store, waiters).await?;
    tell().await?;
    waiting.end().await?;
    tell().await?;
    load(&store).await?;
    tell().await?;
    process::exit(0)
}

/// Says what is allocated, once it is quiet, and waits for a line; ends with whoever listens.
async fn tell() -> Outcome<()> {
    tokio::time::sleep(SETTLE).await;
    let stats = ALLOCATOR.stats();
    println!("{}", stats.bytes_allocated - stats.bytes_deallocated);
    io::stdout().flush()?;
    let read = tokio::task::spawn_blocking(|| io::stdin().lock().read_line(&mut String::new()));
    if read.await?? == 0 {
        process::exit(0);
    }
    Ok(())
}

async fn hold(store: &Store, locks: u32) -> Outcome<Vec<LockGuard>> {
    let mut guards = Vec::new();
    for number in 0..locks {
        guards.push(store.lock(format!("held:{number}")).acquire().await?);
    }
    Ok(guards)
}

/// A line of waiters, and the holder they wait for.
struct Line {
    holder: LockGuard,
    waiters: JoinSet<Outcome<()>>,
}

async fn line(store: &Store, length: u32) -> Outcome<Line> {
    let holder = store.lock("hot").acquire().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..length {
        waiters.spawn(once(store.clone(), "hot".to_owned()));
    }
    Ok(Line { holder, waiters })
}

impl Line {
    /// Everybody has a turn.
    async fn end(self) -> Outcome<()> {
        self.holder.release().await;
        let done: Outcome<Vec<()>> = self.waiters.join_all().await.into_iter().collect();
        done.map(drop)
    }
}

async fn once(store: Store, key: String) -> Outcome<()> {
    store.lock(key).wait(WAIT).acquire().await?.release().await;
    Ok(())
}

/// Two seconds of a hot key and of many cold ones.
async fn load(store: &Store) -> Outcome<()> {
    let end = Instant::now() + Duration::from_secs(2);
    let mut tasks = JoinSet::new();
    for task in 0..128 {
        let store = store.clone();
        tasks.spawn(async move {
            let mut turn = 0_u32;
            while Instant::now() < end {
                turn = (turn + 1) % 1000;
                let key = if task % 2 == 0 { "hot".into() } else { format!("{task}-{turn}") };
                once(store.clone(), key).await?;
            }
            Ok(())
        });
    }
    let done: Outcome<Vec<()>> = tasks.join_all().await.into_iter().collect();
    done.map(drop)
}
