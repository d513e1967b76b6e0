//! What the tests of lockgate stand on: Redis servers, an HTTP client, and one application in both
//! frameworks.
//!
//! A scenario is an exchange over real sockets that knows neither framework nor store. It gets a
//! [`Case`], starts one [`Site`] or more of it, and sends requests. No scenario sleeps: handlers stop
//! at named [`Gates`], which say that somebody has arrived and open when they are told to.

mod case;
mod demo;
mod desk;
mod gates;
mod http;
mod raw;
mod redis;
pub mod site;
mod wait;

pub use self::{
    case::{Backing, Case, run},
    demo::Demo,
    desk::{Desk, Ran},
    gates::Gates,
    http::{Answer, Pending, Request, request},
    raw::Raw,
    redis::{Server, shared_server},
    site::{Framework, Hold, Plan, Site},
    wait::{PATIENCE, eventually, within},
};

/// Four tests of each row: both frameworks on both stores.
#[macro_export]
macro_rules! table {
    ($($module:ident: $($row:ident),+ $(,)?;)+) => {$(
        mod $module {$(
            mod $row {
                $crate::__test!($module, $row, axum_on_memory, Axum, Memory);
                $crate::__test!($module, $row, axum_on_redis, Axum, Redis);
                $crate::__test!($module, $row, actix_on_memory, Actix, Memory);
                $crate::__test!($module, $row, actix_on_redis, Actix, Redis);
            }
        )+}
    )+};
}

/// Two tests of each row: both frameworks on Redis, for what only a server can do.
#[macro_export]
macro_rules! redis_table {
    ($($module:ident: $($row:ident),+ $(,)?;)+) => {$(
        mod $module {$(
            mod $row {
                $crate::__test!($module, $row, axum_on_redis, Axum, Redis);
                $crate::__test!($module, $row, actix_on_redis, Actix, Redis);
            }
        )+}
    )+};
}

/// One test.
#[doc(hidden)]
#[macro_export]
macro_rules! __test {
    ($module:ident, $row:ident, $name:ident, $framework:ident, $backing:ident) => {
        #[test]
        fn $name() {
            $crate::run(
                $crate::Framework::$framework,
                $crate::Backing::$backing,
                crate::rows::$module::$row,
            );
        }
    };
}
