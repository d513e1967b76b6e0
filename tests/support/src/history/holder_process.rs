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

/// Longer than the stalls of a loaded machine.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than any correct acquire takes.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the commands of its input, `hold`, `wait`, `write`, `late` and `release`, one per line, and
/// prints the result of each. A detected lock loss is printed too. The lock is `x`, with a lease of
/// 4 s.
///
/// The register is on the same server and named after the URL's namespace. `write` is a correct
/// write: it checks the validity of the lock, reads and writes the incremented value. `late` only
/// writes, like a write that was in flight when the process was paused.
///
/// # Panics
///
/// If the store is unavailable.
pub async fn run_holder(url: &str) {
    let store = connect_with_long_timeout(url).await;
    let acquire = || store.lock("x").lease(LEASE).wait(ACQUIRE_TIMEOUT).acquire();
    let register = HolderRegister::connect(url).await;
    let mut held: Option<LockGuard> = None;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(command)) = lines.next_line().await {
        match (command.as_str(), held.take()) {
            ("hold", _) => {
                let guard = acquire().await.expect("it is served");
                print_line(&format!("holds {}", guard.fence()));
                let held_lock = guard.held_lock();
                tokio::spawn(async move {
                    print_line(&format!("reports {:?}", held_lock.lost().await));
                });
                held = Some(guard);
            }
            ("wait", unchanged) => {
                held = unchanged;
                let pending = acquire();
                tokio::spawn(async move {
                    let guard = pending.await.expect("it is served");
                    print_line(&format!("served {}", guard.fence()));
                    guard.release().await;
                });
            }
            ("write", Some(guard)) => {
                let is_valid = !guard.remaining().is_zero();
                print_line(&if is_valid {
                    register.increment(guard.fence()).await
                } else {
                    "lost".to_owned()
                });
                held = Some(guard);
            }
            ("late", Some(guard)) => {
                let is_accepted =
                    register.write(guard.fence(), RegisterValues { fenced: 2, unfenced: 2 }).await;
                print_line(if is_accepted { "taken" } else { "refused" });
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
        let client = RegisterClient::connect(url).await.expect("the registers are there");
        Self { client, register_name: name.to_owned() }
    }

    async fn increment(&self, fence: u64) -> String {
        let values =
            self.client.read(&self.register_name, fence).await.expect("the registers are there");
        let Some(next) = values.map(RegisterValues::incremented) else {
            return "refused".to_owned();
        };
        if self.write(fence, next).await {
            format!("writes {}", next.fenced)
        } else {
            "refused".to_owned()
        }
    }

    /// Returns true if the register accepted the write.
    async fn write(&self, fence: u64, next: RegisterValues) -> bool {
        self.client.write(&self.register_name, fence, next).await.expect("the registers are there")
    }
}
