//! Whom callbacks go to: one that is slow does not get all the room there is for them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// What takes longer is slow: an acknowledgement is a matter of milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// Most that are known to be slow while nothing is sent to them: clients choose their names.
const KNOWN: usize = 1_000;

/// The hosts of one worker's calls.
#[derive(Default)]
pub(super) struct Hosts(Mutex<HashMap<String, Host>>);

#[derive(Default)]
struct Host {
    /// That are under way.
    calls: usize,
    /// The last one was.
    slow: bool,
}

impl Hosts {
    /// A call begins; `None` if the host is slow and has so many of them.
    pub(super) fn enter(self: &Arc<Self>, url: &str, most: usize) -> Option<Guest> {
        let name = authority(url);
        let mut hosts = self.0.lock();
        let host = hosts.entry(name.clone()).or_default();
        if host.slow && host.calls >= most {
            return None;
        }
        host.calls += 1;
        Some(Guest { hosts: Arc::clone(self), name, since: Instant::now() })
    }
}

/// One call, until it has ended.
pub(super) struct Guest {
    hosts: Arc<Hosts>,
    name: String,
    since: Instant,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut hosts = self.hosts.0.lock();
        let known = hosts.len();
        let Some(host) = hosts.get_mut(&self.name) else { return };
        (host.calls, host.slow) = (host.calls.saturating_sub(1), self.since.elapsed() > SLOW);
        if host.calls == 0 && (!host.slow || known > KNOWN) {
            hosts.remove(&self.name);
        }
    }
}

/// Host and port, as far as a URL says so plainly; one that says it otherwise is a host of its own.
fn authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_host_has_so_many_and_others_have_what_they_want() {
        let hosts = Arc::<Hosts>::default();
        let enter = |url| hosts.enter(url, 1);
        // Nothing is known of it yet.
        let first = [enter("https://a.example/x"), enter("https://A.example/y?z")];
        assert!(first.iter().all(Option::is_some));
        tokio::time::advance(2 * SLOW).await;
        drop(first);
        let one = enter("https://a.example");
        assert!(one.is_some() && enter("https://a.example/x").is_none());
        assert!(
            enter("https://a.example:8443/x").is_some() && enter("https://b.example").is_some()
        );
        // It has answered at once.
        drop(one);
        let both = [enter("https://a.example"), enter("https://a.example")];
        assert!(both.iter().all(Option::is_some));
        drop(both);
        assert!(hosts.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_of_hosts_has_a_bound() {
        let hosts = Arc::<Hosts>::default();
        for n in 0..2 * KNOWN {
            let guest = hosts.enter(&format!("https://{n}.example/"), 1);
            tokio::time::advance(2 * SLOW).await;
            drop(guest);
        }
        assert_eq!(hosts.0.lock().len(), KNOWN);
    }
}
