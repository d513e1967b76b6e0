//! What every store must do, case by case, and what the stores must do alike.
//!
//! A case is written once against a [`rig::Rig`] and runs on memory and on a Redis server of the
//! tests' own. Time passes only when a case says so: on Redis by moving everything stored into the
//! past ([`shift_times.lua`](../shift_times.lua)), so no case sleeps.

#[cfg(feature = "redis")]
mod alike;
#[cfg(feature = "redis")]
mod both;
mod calls;
mod caps;
mod clients;
mod clock;
#[cfg(feature = "redis")]
pub(crate) mod cluster;
mod direct;
mod downgrade;
mod drain;
mod ended;
mod explore;
mod faulty;
mod fields;
#[cfg(feature = "redis")]
mod front;
#[cfg(feature = "redis")]
mod fsck;
mod hints;
mod home;
mod jobs;
mod kept;
mod late;
mod locks;
mod logged;
#[cfg(feature = "redis")]
mod lost;
mod memory_only;
mod merges;
mod mixed;
mod model;
mod modes;
mod moves;
mod next;
mod pass;
mod pending;
mod permits;
mod phases;
mod places;
mod rates;
#[cfg(feature = "redis")]
mod redis_only;
mod repairs;
mod reserve;
mod rig;
mod rounds;
mod runs;
#[cfg(feature = "redis")]
mod sentinels;
#[cfg(feature = "redis")]
mod server;
mod shards;
mod shared;
#[cfg(feature = "redis")]
mod slow;
mod spawn;
mod still;
mod tasks;
mod told;
mod tombs;
mod truth;
#[cfg(feature = "redis")]
mod vanished;

/// Makes each case a test on every store. A case that is not named here is an unused function, which
/// the compiler tells.
macro_rules! on_every_store {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $case() {
                super::$case(&super::Rig::memory()).await;
            })+
        }

        #[cfg(feature = "redis")]
        mod redis {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow::in_time(
                    || Box::pin(super::Rig::redis()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }

        #[cfg(feature = "redis")]
        mod cluster {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow::in_time(
                    || Box::pin(super::Rig::cluster()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }

        /// Other ways to one server. What a step does there is known by then: here the cases go one after the other.
        #[cfg(feature = "redis")]
        mod by_other_ways {
            const CASES: &[(&str, $crate::store::tests::slow::Case<'static>)] =
                &[$((stringify!($case), &|rig| Box::pin(super::$case(rig)))),+];

            #[tokio::test]
            async fn behind_sentinels() {
                for (name, case) in CASES {
                    println!("{name}");
                    $crate::store::tests::slow::in_time(|| Box::pin(super::Rig::sentinels()), case).await;
                }
            }

            #[cfg(feature = "bb8-redis")]
            #[tokio::test]
            async fn on_a_pool() {
                for (name, case) in CASES {
                    println!("{name}");
                    $crate::store::tests::slow::in_time(|| Box::pin(super::Rig::pool()), case).await;
                }
            }
        }
    };
}

/// Makes each case a test on a Redis server, which alone can show it.
#[cfg(feature = "redis")]
macro_rules! on_redis {
    ($($case:ident),+ $(,)?) => {
        mod alone {
            $(#[tokio::test]
            async fn $case() {
                $crate::store::tests::slow::in_time(
                    || Box::pin(super::Rig::redis()),
                    &|rig| Box::pin(super::$case(rig)),
                )
                .await;
            })+
        }
    };
}

#[cfg(feature = "redis")]
pub(crate) use self::front::{Call, Front, command, says};
pub(crate) use self::{
    faulty::{Fault, Faults, faulty, faulty_with_clock},
    home::elsewhere,
    logged::Log,
    spawn::spawn,
};
use on_every_store;
#[cfg(feature = "redis")]
use on_redis;
