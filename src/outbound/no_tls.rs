//! Stub of the TLS functions for builds without the TLS features.

#[derive(Clone)]
pub(crate) struct TlsClientConfig;

/// Returns the connector unchanged.
pub(crate) fn with_tls<T>(tcp: T, _: &TlsClientConfig) -> T {
    tcp
}

pub(crate) fn system_tls_config(_: bool, _: &str) -> TlsClientConfig {
    TlsClientConfig
}
