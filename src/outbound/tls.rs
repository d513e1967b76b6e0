//! TLS by rustls with ring, which needs no C toolchain beyond a compiler. No provider is installed
//! for the process, so an application may use another one.

use std::sync::Arc;

use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, crypto::ring};

pub(crate) type Tls = Arc<ClientConfig>;

/// Adds TLS to a connector, for URLs of `https` alone.
pub(crate) fn secured<T>(tcp: T, tls: &Tls) -> HttpsConnector<T> {
    HttpsConnector::from((tcp, Arc::clone(tls)))
}

/// Trusts the roots of this system as they are now, read only if `https` is used at all. Without
/// any, `calls` fail.
pub(crate) fn system_tls(https: bool, calls: &str) -> Tls {
    let none = || trusting(RootCertStore::empty());
    if !https {
        return none();
    }
    match builder().with_native_roots() {
        Ok(config) => Arc::new(config.with_no_client_auth()),
        Err(error) => {
            tracing::error!(%error, "no root certificates: {calls} by https will fail");
            none()
        }
    }
}

/// Trusts these roots alone.
pub(crate) fn trusting(roots: RootCertStore) -> Tls {
    Arc::new(builder().with_root_certificates(roots).with_no_client_auth())
}

#[expect(clippy::expect_used, reason = "ring has the ciphers of TLS 1.2 and 1.3")]
fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3")
}
