//! HTTP/1.1 client of webhooks and HTTP replays, on hyper-util's client and `hyper-rustls`.

mod describe_error_chain;
mod fn_connector;
#[cfg(not(any(feature = "webhook", feature = "http-replay-tls")))]
mod no_tls;
#[cfg(all(test, any(feature = "webhook", feature = "http-replay-tls")))]
pub(crate) mod tests;
#[cfg(any(feature = "webhook", feature = "http-replay-tls"))]
mod tls;

#[cfg(not(any(feature = "webhook", feature = "http-replay-tls")))]
pub(crate) use self::no_tls::{TlsClientConfig, system_tls_config, with_tls};
#[cfg(all(test, any(feature = "webhook", feature = "http-replay-tls")))]
pub(crate) use self::tls::tls_config_with_roots;
#[cfg(any(feature = "webhook", feature = "http-replay-tls"))]
pub(crate) use self::tls::{TlsClientConfig, system_tls_config, with_tls};
pub(crate) use self::{
    describe_error_chain::{OutboundError, describe_error_chain},
    fn_connector::FnConnector,
};
