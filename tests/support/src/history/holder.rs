//! A process that holds a lock and does as it is told: for what shows on one that is stopped.

use std::time::Duration;

use lockgate::LockGuard;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::{
    fleet::{
        orders::say,
        register::{Registers, Values},
    },
    redis::patient_store,
};

/// Longer than a loaded machine stands still, with its renewals.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than anything takes that is not wrong.
const WAIT: Duration = Duration::from_secs(30);

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
pub async fn holder(url: &str) {
    let store = patient_store(url).await;
    let ask = || store.lock("x").lease(LEASE).wait(WAIT).acquire();
    let register = Register::open(url).await;
    let mut held: Option<LockGuard> = None;
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(word)) = words.next_line().await {
        match (word.as_str(), held.take()) {
            ("hold", _) => {
                let guard = ask().await.expect("it is served");
                say(&format!("holds {}", guard.fence()));
                let copy = guard.held_lock();
                tokio::spawn(async move { say(&format!("told {:?}", copy.lost().await)) });
                held = Some(guard);
            }
            ("wait", same) => {
                held = same;
                let waiting = ask();
                tokio::spawn(async move {
                    let guard = waiting.await.expect("it is served");
                    say(&format!("served {}", guard.fence()));
                    guard.release().await;
                });
            }
            ("write", Some(guard)) => {
                let may = !guard.remaining().is_zero();
                say(&if may { register.one_more(guard.fence()).await } else { "lost".to_owned() });
                held = Some(guard);
            }
            ("late", Some(guard)) => {
                let taken = register.write(guard.fence(), Values { fenced: 2, plain: 2 }).await;
                say(if taken { "taken" } else { "refused" });
                held = Some(guard);
            }
            ("release", Some(guard)) => {
                say(&format!("{:?}", guard.release().await));
            }
            (other, _) => say(&format!("can't {other}")),
        }
    }
}

struct Register {
    all: Registers,
    name: String,
}

impl Register {
    async fn open(url: &str) -> Self {
        let (_, name) = url.split_once('?').unwrap_or((url, ""));
        let all = Registers::open(url).await.expect("the registers are there");
        Self { all, name: name.to_owned() }
    }

    async fn one_more(&self, fence: u64) -> String {
        let read = self.all.read(&self.name, fence).await.expect("the registers are there");
        let Some(next) = read.map(Values::next) else { return "refused".to_owned() };
        if self.write(fence, next).await {
            format!("writes {}", next.fenced)
        } else {
            "refused".to_owned()
        }
    }

    /// Whether it was taken.
    async fn write(&self, fence: u64, next: Values) -> bool {
        self.all.write(&self.name, fence, next).await.expect("the registers are there")
    }
}
