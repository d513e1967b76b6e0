//! TLS for the calls that this library makes by HTTP: rustls with ring, and the system's roots.
//!
//! ring, because it needs no C toolchain beyond a compiler; and no provider is installed for the process, so an
//! application may use another one.

use std::sync::Arc;

use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// With the roots of this system, as they are now; `what` fails without any.
pub(crate) fn of_system(what: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        tracing::error!("no root certificates are on this system: {what} by https will fail");
    }
    with(roots)
}

/// With these roots alone.
#[expect(clippy::expect_used, reason = "ring has the ciphers of TLS 1.2 and 1.3")]
pub(crate) fn with(roots: RootCertStore) -> ClientConfig {
    // The provider by name: none has to be installed for the process, and one that is stays out of it.
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of TLS 1.2 and 1.3");
    config.with_root_certificates(roots).with_no_client_auth()
}

/// A server whose certificate is for `localhost` and 127.0.0.1, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use tokio_rustls::{
        TlsAcceptor,
        rustls::{
            RootCertStore, ServerConfig,
            crypto::ring,
            pki_types::{CertificateDer, PrivatePkcs8KeyDer},
        },
    };

    fn certificate() -> CertificateDer<'static> {
        CertificateDer::from(&include_bytes!("remote/testing/certificate.der")[..])
    }

    pub(crate) fn acceptor() -> TlsAcceptor {
        let key = PrivatePkcs8KeyDer::from(&include_bytes!("remote/testing/key.der")[..]);
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config.with_no_client_auth().with_single_cert(vec![certificate()], key.into())
            });
        TlsAcceptor::from(Arc::new(config.expect("it is a key")))
    }

    /// Who trusts that server alone.
    pub(crate) fn roots() -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).expect("it is a certificate");
        roots
    }
}
