//! A process that holds a lock and does as it is told: for what shows on one that is stopped.

use std::{io::Write as _, time::Duration};

use lockgate::{LockGuard, Store};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::turn::{LEASE, WAIT};

/// Hears `hold`, `wait`, `write` and `release`, a word a line, and says what comes of each. That the lock
/// is lost it says when it is told. The lock is `x`, with a lease of a second.
///
/// # Panics
///
/// If the store is not there.
pub async fn holder(url: &str) {
    let store = Store::builder(url).deadline(Duration::from_secs(10)).connect().await;
    let store = store.expect("the URL is right");
    let ask = || store.lock("x").lease(LEASE).wait(WAIT).acquire();
    let mut held: Option<LockGuard> = None;
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(word)) = words.next_line().await {
        match (word.as_str(), held.take()) {
            ("hold", _) => {
                let guard = ask().await.expect("it is served");
                say(&format!("holds {}", guard.fence()));
                let copy = guard.held();
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
                say(if may { "writes" } else { "lost" });
                held = Some(guard);
            }
            ("release", Some(guard)) => {
                say(&format!("{:?}", guard.release().await));
            }
            (other, _) => say(&format!("can't {other}")),
        }
    }
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}
