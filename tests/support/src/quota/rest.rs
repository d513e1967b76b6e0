//! N1: what is left once all have come to rest. Their processes live, their stores are shut down.

use std::time::{Duration, Instant};

use lockgate_history::{Violation, rest::Rest};

use crate::{kept, redis::Server};

/// Until what was on its way has come to its end.
const REST: Duration = Duration::from_secs(15);

/// How long nothing may happen: signs of life, and what looks after leases and shares, come more often.
const QUIET: Duration = Duration::from_millis(1000);

/// Sockets of a process that has the usual number of them, and one for messages.
const SOCKETS: u64 = 3;

pub(super) async fn left(server: &Server, namespace: &str, processes: u64) -> Vec<Violation> {
    let until = Instant::now() + REST;
    loop {
        let wrong = look(server, namespace, processes).await.check();
        if wrong.is_empty() || Instant::now() > until {
            return wrong;
        }
    }
}

async fn look(server: &Server, namespace: &str, processes: u64) -> Rest {
    let mut connection = server.connection().await;
    let before = server.script_calls();
    tokio::time::sleep(QUIET).await;
    let calls = server.script_calls().saturating_sub(before);
    let (clients, subscriptions) = kept::clients(&mut connection).await;
    Rest {
        keys: kept::kept(&mut connection, namespace).await,
        subscriptions,
        channels: kept::channels(&mut connection, namespace).await,
        clients,
        sockets: Some(SOCKETS),
        processes,
        calls,
        ..Rest::default()
    }
}
