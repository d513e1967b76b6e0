//! Which server it is: after a restart or a failover, what was held may be gone.

use std::sync::Weak;

use parking_lot::Mutex;

use super::target::Connection;

/// Who wants to know.
type Tell = Weak<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(super) struct Incarnation {
    seen: Mutex<Seen>,
    tell: Mutex<Vec<Tell>>,
}

#[derive(Default)]
struct Seen {
    /// There has been a connection before.
    any: bool,
    id: Option<String>,
}

impl Incarnation {
    pub(super) fn on_change(&self, tell: Tell) {
        self.tell.lock().push(tell);
    }

    /// A lane has a new connection: to the server of this id, if it tells, and without our data, if `blank`.
    pub(super) fn met(&self, id: Option<String>, blank: bool) {
        let mut seen = self.seen.lock();
        let differs = id.is_some() && seen.id.is_some() && id != seen.id;
        let changed = seen.any && (differs || blank);
        seen.any = true;
        seen.id = id.or(seen.id.take());
        drop(seen);
        if changed {
            tracing::warn!("the store is another server than before, or has lost its data");
            self.tell();
        }
    }

    fn tell(&self) {
        let mut living = Vec::new();
        self.tell.lock().retain(|tell| {
            living.extend(tell.upgrade());
            tell.strong_count() > 0
        });
        // Outside the lock: they may do what they like.
        living.iter().for_each(|tell| tell());
    }
}

/// A server's id: another one after each start. Where `INFO` is not allowed, there is none.
pub(super) async fn run_id(connection: &mut Connection) -> Option<String> {
    let mut info = redis::cmd("INFO");
    let text: Result<String, _> = info.arg("server").query_async(connection).await;
    let text = text.ok()?;
    text.lines().find_map(|line| line.strip_prefix("run_id:").map(|id| id.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    fn counted(incarnation: &Incarnation) -> (Arc<AtomicUsize>, Arc<dyn Fn() + Send + Sync>) {
        let times = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&times);
        let tell: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        incarnation.on_change(Arc::downgrade(&tell));
        (times, tell)
    }

    #[test]
    fn another_server_is_told_once_and_to_those_who_live() {
        let incarnation = Incarnation::default();
        let (times, _alive) = counted(&incarnation);
        let (never, dead) = counted(&incarnation);
        drop(dead);
        let told = || times.load(Ordering::SeqCst);
        let id = |id: &str| Some(id.to_owned());
        // The first of all, blank as it is, and another lane.
        incarnation.met(id("a"), true);
        incarnation.met(id("a"), false);
        assert_eq!(told(), 0);
        incarnation.met(id("b"), false);
        assert_eq!(told(), 1);
        incarnation.met(id("b"), false);
        assert_eq!(told(), 1);
        // A server that does not tell its id: only that it is empty.
        incarnation.met(None, false);
        assert_eq!(told(), 1);
        incarnation.met(None, true);
        assert_eq!(told(), 2);
        incarnation.met(id("b"), false);
        assert_eq!(told(), 2);
        assert_eq!(never.load(Ordering::SeqCst), 0);
    }
}
