//! What the tests of lockgate stand on: Redis servers, an HTTP client, and one application in both
//! frameworks.
//!
//! A scenario is an exchange over real sockets that knows neither framework nor store. It gets a
//! [`Case`], starts one [`Site`] or more of it, and sends requests. No scenario sleeps: handlers stop
//! at named [`Gates`], which say that somebody has arrived and open when they are told to.

mod case;
mod cluster;
mod demo;
mod desk;
mod flat;
pub mod fleet;
mod gates;
mod gauge;
pub mod history;
mod http;
mod kept;
pub mod ledger;
pub mod proxy;
pub mod quota;
mod raw;
mod redis;
mod refund_gate;
mod sentinels;
pub mod site;
pub mod stalls;
mod tally;
pub mod tasks;
mod wait;

use lockgate_history as checker;

/// Code blocks of the README and of `docs/` as doc tests; see `build.rs`. They are compiled here
/// because only this package depends on both integrations.
#[cfg(doctest)]
mod doc_pages {
    include!(concat!(env!("OUT_DIR"), "/doc_pages.rs"));
}

pub use self::{
    case::{Backing, Case, run},
    cluster::{Cluster, Replicated, shared_cluster},
    demo::Demo,
    desk::{Desk, Ran},
    gates::Gates,
    http::{Answer, Pending, Request, request},
    kept::left_of_locks,
    raw::Raw,
    redis::{Server, free_port, patient_store, shared_server},
    refund_gate::{REFUND_GATE, wait_for_refund_gate},
    sentinels::Sentinels,
    site::{Framework, Hold, Plan, Site},
    wait::{PATIENCE, eventually, within},
};
