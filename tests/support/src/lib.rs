//! Test support of lockgate: Redis servers, an HTTP client, and one application in both
//! frameworks.
//!
//! A scenario is an exchange over real sockets that knows neither framework nor store. It gets a
//! [`TestCase`], starts one or more [`TestSite`]s of it, and sends requests. No scenario sleeps:
//! handlers stop at named [`SyncPoints`], which report each arrival and open on command.

mod command_stats;
mod demo_process;
pub mod fleet;
pub mod history;
mod http_client;
pub mod ledger;
pub mod proxy;
pub mod quota;
mod raw_connection;
mod redis_cluster;
mod redis_server;
mod refund_gate;
mod resource_usage;
mod scripted_handler;
mod sentinel_deployment;
pub mod site;
mod soak_measurements;
pub mod stalls;
mod store_inspection;
mod sync_points;
pub mod tasks;
mod test_case;
mod wait;

use lockgate_history as checker;

/// Code blocks of the README and of `docs/` as doc tests; see `build.rs`. They are compiled here
/// because only this package depends on both integrations.
#[cfg(doctest)]
mod doc_pages {
    include!(concat!(env!("OUT_DIR"), "/doc_pages.rs"));
}

pub use self::{
    demo_process::DemoProcess,
    http_client::{PendingResponse, TestRequest, TestResponse, request},
    raw_connection::RawConnection,
    redis_cluster::{RedisCluster, ReplicatedCluster, shared_cluster},
    redis_server::{RedisServer, connect_with_long_timeout, free_port, shared_server},
    refund_gate::{REFUND_GATE, wait_for_refund_gate},
    scripted_handler::{HandlerRun, ScriptedHandler},
    sentinel_deployment::SentinelDeployment,
    site::{HeldRequest, TestSite, TestSiteBuilder, WebFramework},
    store_inspection::leftovers_of_locks,
    sync_points::SyncPoints,
    test_case::{StoreKind, TestCase, run_case},
    wait::{TEST_TIMEOUT, eventually, with_timeout},
};
