//! TLS by rustls with ring, which needs only a C compiler. No provider is installed for the
//! process, so an application may use another one.

use std::sync::Arc;

use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, crypto::ring};

pub(crate) type TlsClientConfig = Arc<ClientConfig>;

/// Adds TLS to a connector, for `https` URLs only.
pub(crate) fn with_tls<T>(tcp: T, tls: &TlsClientConfig) -> HttpsConnector<T> {
    HttpsConnector::from((tcp, Arc::clone(tls)))
}

/// Returns a configuration that trusts the system's current root certificates. They are read only
/// if `https` is used at all. Without root certificates, the `calls` named in the log fail.
pub(crate) fn system_tls_config(https: bool, calls: &str) -> TlsClientConfig {
    let none = || tls_config_with_roots(RootCertStore::empty());
    if !https {
        return none();
    }
    match tls_config_builder().with_native_roots() {
        Ok(config) => Arc::new(config.with_no_client_auth()),
        Err(error) => {
            tracing::error!(
                %error,
                "no root certificates: HTTPS calls for {calls} will fail; install the system's \
                 certificates"
            );
            none()
        }
    }
}

/// Returns a configuration that trusts these roots only.
pub(crate) fn tls_config_with_roots(roots: RootCertStore) -> TlsClientConfig {
    Arc::new(tls_config_builder().with_root_certificates(roots).with_no_client_auth())
}

#[expect(clippy::expect_used, reason = "ring has the ciphers of TLS 1.2 and 1.3")]
fn tls_config_builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3")
}
