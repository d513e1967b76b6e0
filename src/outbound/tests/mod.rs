//! A server whose certificate is for `localhost` and 127.0.0.1.

use std::sync::Arc;

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    },
};

fn test_certificate() -> CertificateDer<'static> {
    CertificateDer::from(&include_bytes!("certificate.der")[..])
}

pub(crate) fn test_tls_acceptor() -> TlsAcceptor {
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("key.der")[..]);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| {
            config.with_no_client_auth().with_single_cert(vec![test_certificate()], key.into())
        });
    TlsAcceptor::from(Arc::new(config.expect("it is a key")))
}

/// The roots of a client that trusts that server alone.
pub(crate) fn test_root_store() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(test_certificate()).expect("it is a certificate");
    roots
}
