//! Tests of every store, case by case, and of the equivalence of the stores.
//!
//! A case is written once against a [`StoreHarness`](store_harness::StoreHarness) and runs on
//! memory and on a Redis server of the tests. Time passes only when a case advances it. On Redis
//! this moves all stored times into the past (`shift_times.lua`), so no case sleeps.

mod audit_log;
#[cfg(feature = "redis")]
mod backend_equivalence;
mod captured_log;
mod client_operation;
mod clock_rewind;
mod delayed_jobs;
#[cfg(feature = "redis")]
mod deleted_job_keys;
mod direct_runs;
mod downgrade;
mod end_job_delay;
mod ended_job_limits;
mod ended_jobs;
mod explore;
mod faulty_backend;
#[cfg(feature = "redis")]
mod fleet_looks;
mod fsck;
mod grant_refresh;
mod job_runs;
mod jobs;
mod killed_process;
mod lock_inspection;
mod lock_mode_steps;
mod locks;
mod memory_only;
mod merged_jobs;
mod missing_fields;
mod model_drain;
mod modes_with_jobs;
#[cfg(feature = "redis")]
mod operations_on_lost_jobs;
mod pending_jobs;
mod permits;
mod queue_entries;
mod queue_repairs;
mod rates;
#[cfg(feature = "redis")]
mod redis_only;
mod registered_workers;
mod release_and_reacquire;
mod renewal_wakeups;
mod reply_model;
mod reserve;
#[cfg(feature = "redis")]
mod scripted_proxy;
#[cfg(feature = "redis")]
mod sentinel_servers;
#[cfg(feature = "redis")]
mod server_namespace;
mod settle_and_claim;
mod shard_ownership;
mod shared_locks;
mod simulated_clients;
#[cfg(feature = "redis")]
mod slow_case_retry;
mod spawn;
mod stalled_runtime;
mod storage_limits;
mod store_call;
mod store_harness;
mod store_model;
#[cfg(feature = "redis")]
mod store_pair;
mod tasks;
#[cfg(feature = "redis")]
pub(crate) mod test_cluster;
mod tombstones;
mod wakeup_delivery;
mod webhook_jobs;
mod writer_fairness;

/// Makes each case a test on every store. A case that is not listed is an unused function, which
/// the compiler reports.
macro_rules! on_every_store {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::StoreHarness::memory()).await;
            })+
        }

        #[cfg(feature = "redis")]
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow_case_retry::retry_slow_case(
                    || Box::pin(super::StoreHarness::redis()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }

        #[cfg(feature = "redis")]
        mod cluster {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow_case_retry::retry_slow_case(
                    || Box::pin(super::StoreHarness::cluster()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }

        /// Other connections to one server. The operations themselves are tested above, so these
        /// cases run in one test, in sequence.
        #[cfg(feature = "redis")]
        mod other_connections {
            const CASES: &[(&str, $crate::store::tests::slow_case_retry::HarnessCase<'static>)] =
                &[$((stringify!($case), &|rig| Box::pin(super::$case(rig)))),+];

            #[tokio::test]
            async fn every_case_behind_sentinels() {
                for (name, case) in CASES {
                    println!("{name}");
                    $crate::store::tests::slow_case_retry::retry_slow_case(|| Box::pin(super::StoreHarness::sentinels()), case).await;
                }
            }

            #[cfg(feature = "bb8-redis")]
            #[tokio::test]
            async fn every_case_on_connection_pool() {
                for (name, case) in CASES {
                    println!("{name}");
                    $crate::store::tests::slow_case_retry::retry_slow_case(|| Box::pin(super::StoreHarness::pool()), case).await;
                }
            }
        }
    };
}

/// Makes each case a test on a Redis server, for behavior of Redis alone.
#[cfg(feature = "redis")]
macro_rules! on_redis {
    ($($case:ident),+ $(,)?) => {
        mod redis_server {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow_case_retry::retry_slow_case(
                    || Box::pin(super::StoreHarness::redis()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }
    };
}

#[cfg(feature = "redis")]
pub(crate) use self::scripted_proxy::{ProxiedCommand, ScriptedProxy, read_command, reply_script};
pub(crate) use self::{
    captured_log::CapturedLog,
    faulty_backend::{BackendFault, FaultSchedule, faulty_store, faulty_store_with_clock},
    killed_process::acquire_as_killed_process,
    spawn::spawn,
    stalled_runtime::with_stalled_stores,
};
use on_every_store;
#[cfg(feature = "redis")]
use on_redis;
