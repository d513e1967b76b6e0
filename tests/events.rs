//! What is seen from outside: an event for each turn a lock takes, with the node and a hashed key, and
//! never a token. A test target of its own, because the subscriber is the process's.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockgate::{Key, NotAcquired, Store};
use tracing_subscriber::fmt::MakeWriter;

/// An account number: it must not be found in a log.
const SECRET: &str = "DE89370400440532013000";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The longest run of hex digits. A node has 16; a nonce 32.
fn longest_hex(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max().unwrap_or(0)
}

#[tokio::test]
async fn events_name_node_and_hash_and_no_token() {
    let log = Log::default();
    tracing_subscriber::fmt()
        .with_env_filter("lockgate=trace")
        .with_ansi(false)
        .with_writer(log.clone())
        .init();

    let store = Store::memory();
    let key = Key::path_param("account", SECRET);
    let short = Duration::from_millis(100);
    let held = store.lock(key.clone()).lease_fixed(short).acquire().await.expect("free");
    let refused = store.as_another_process().lock(key.clone()).acquire().await;
    assert!(matches!(refused, Err(NotAcquired::Busy(_))));
    let second = store.lock(key.clone()).wait(Duration::from_secs(5)).acquire().await;
    let second = second.expect("the fixed lease ends");
    held.lost().await;
    drop(held);
    second.release().await;
    assert!(store.shutdown(Duration::from_secs(1)).await);

    let text = String::from_utf8(log.0.lock().expect("no writer panics").clone()).expect("text");
    for event in ["waiting in line", "lock granted", "lock lost", "lock released", "given back"] {
        let line = text.lines().find(|line| line.contains(event));
        let line = line.unwrap_or_else(|| panic!("no event `{event}` in:\n{text}"));
        assert!(line.contains("node=") && line.contains("lock="), "{line}");
    }
    assert!(!text.contains(SECRET), "{text}");
    assert!(longest_hex(&text) <= 16, "{text}");
}
