//! Process that holds a lock and obeys commands, for tests that pause it.

use std::time::Duration;

use lockgate::LockGuard;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{
    fleet::{
        process_control::print_line,
        register_client::{RegisterClient, RegisterValues},
    },
    redis_server::connect_with_long_timeout,
};

/// Longer than a loaded machine stands still, with its renewals.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than anything takes that is not wrong.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// Hears `hold`, `wait`, `write`, `late` and `release`, a word a line, and says what comes of each. That the lock
/// is lost it says when it is told. The lock is `x`, with a lease of 4 s.
///
/// What it writes is a register on the same server, that of the URL's namespace: `write` is what a holder does, who
/// looks at what it is sure of, reads, and writes one more; `late` is the write alone, as it may have been on its way
/// when the process was stopped.
///
/// # Panics
///
/// If the store is not there.
pub async fn run_holder(url: &str) {
    let store = connect_with_long_timeout(url).await;
    let ask = || store.lock("x").lease(LEASE).wait(ACQUIRE_TIMEOUT).acquire();
    let register = HolderRegister::connect(url).await;
    let mut held: Option<LockGuard> = None;
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(word)) = words.next_line().await {
        match (word.as_str(), held.take()) {
            ("hold", _) => {
                let guard = ask().await.expect("it is served");
                print_line(&format!("holds {}", guard.fence()));
                let copy = guard.held_lock();
                tokio::spawn(async move { print_line(&format!("told {:?}", copy.lost().await)) });
                held = Some(guard);
            }
            ("wait", same) => {
                held = same;
                let waiting = ask();
                tokio::spawn(async move {
                    let guard = waiting.await.expect("it is served");
                    print_line(&format!("served {}", guard.fence()));
                    guard.release().await;
                });
            }
            ("write", Some(guard)) => {
                let may = !guard.remaining().is_zero();
                print_line(&if may {
                    register.increment(guard.fence()).await
                } else {
                    "lost".to_owned()
                });
                held = Some(guard);
            }
            ("late", Some(guard)) => {
                let taken =
                    register.write(guard.fence(), RegisterValues { fenced: 2, unfenced: 2 }).await;
                print_line(if taken { "taken" } else { "refused" });
                held = Some(guard);
            }
            ("release", Some(guard)) => {
                print_line(&format!("{:?}", guard.release().await));
            }
            (other, _) => print_line(&format!("can't {other}")),
        }
    }
}

struct HolderRegister {
    client: RegisterClient,
    register_name: String,
}

impl HolderRegister {
    async fn connect(url: &str) -> Self {
        let (_, name) = url.split_once('?').unwrap_or((url, ""));
        let all = RegisterClient::connect(url).await.expect("the registers are there");
        Self { client: all, register_name: name.to_owned() }
    }

    async fn increment(&self, fence: u64) -> String {
        let read =
            self.client.read(&self.register_name, fence).await.expect("the registers are there");
        let Some(next) = read.map(RegisterValues::incremented) else { return "refused".to_owned() };
        if self.write(fence, next).await {
            format!("writes {}", next.fenced)
        } else {
            "refused".to_owned()
        }
    }

    /// Whether it was taken.
    async fn write(&self, fence: u64, next: RegisterValues) -> bool {
        self.client.write(&self.register_name, fence, next).await.expect("the registers are there")
    }
}
