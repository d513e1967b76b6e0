//! Connection targets: the kinds of deployment, and how to connect to each.
//!
//! A [`ConnectionTarget`] is built from the application's configuration. [`ConnectionTarget::open`]
//! opens one [`RedisConnection`], and [`ConnectionTarget::subscribe`] one stream of messages. Other
//! modules see only connections, so the rules of each topology stay in this module.

mod cluster;
mod connect_error;
mod connection_target;
mod dedicated_or_pooled_connection;
#[cfg(feature = "bb8-redis")]
mod pool_target;
mod redis_tls_settings;
mod sentinel_target;
mod single_server;
mod store_url;
mod timeout_and_disconnect_flag;

pub(super) use self::connection_target::{ConnectionTarget, MessageStream, OpenedConnection};
#[cfg(feature = "bb8-redis")]
pub(super) use self::pool_target::ApplicationPool;
pub(super) use self::{
    cluster::{ClusterTarget, Endpoint},
    connect_error::{ConnectError, missing_permission},
    dedicated_or_pooled_connection::RedisConnection,
    redis_tls_settings::RedisTlsSettings,
    sentinel_target::SentinelTarget,
    store_url::{LoginCredentials, SENTINEL_PORT, ServerAddresses, StoreUrl},
    timeout_and_disconnect_flag::TimeoutAndDisconnectFlag,
};
