//! N1: what is left in the store when everything has ended.

use std::time::Duration;

use lockgate::testing::history::{Violation, rest::Rest};

use crate::{kept::kept, redis::Server};

/// Until leases and places of the dead are over.
const REST: Duration = Duration::from_secs(20);

/// What is wrong once nothing is left to be done.
pub(super) async fn behind(server: &Server, namespace: &str) -> Vec<Violation> {
    let mut connection = server.connection().await;
    let until = tokio::time::Instant::now() + REST;
    loop {
        let keys = kept(&mut connection, namespace).await;
        let wrong = Rest { keys, ..Rest::default() }.check();
        if wrong.is_empty() || tokio::time::Instant::now() > until {
            return wrong;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
